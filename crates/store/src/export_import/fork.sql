-- $1 bucket, $2 thread, $3 bucket and $4 id of the new one, $5 last batch. All or nothing, as of
-- the start of the statement.
WITH next AS MATERIALIZED (
    -- The start of the first batch that is left out: compactions from there on are left out as
    -- well.
    SELECT coalesce((SELECT m.position FROM messages AS m
                     WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position > $5 AND m.position = m.batch_id
                     ORDER BY m.position LIMIT 1), 9223372036854775807) AS position
)
, made AS (
    INSERT INTO threads (bucket, thread_id, head_position, message_count, hidden_count, last_number, agent_id, busy_policy, metadata)
    SELECT $3, $4, m.head, m.messages, m.hidden, m.last_number, coalesce(t.agent_id, t.thread_id), t.busy_policy, t.metadata
    FROM threads AS t
    CROSS JOIN LATERAL (
        SELECT max(m.position) AS head, count(*) AS messages, coalesce(max(m.number), 0) AS last_number,
               count(*) FILTER (WHERE m.metadata -> 'synthetic' = 'true'::jsonb) AS hidden
        FROM messages AS m
        WHERE m.bucket = $1 AND m.thread_id = $2 AND m.batch_id <= $5
    ) AS m
    WHERE t.bucket = $1 AND t.thread_id = $2
      AND NOT EXISTS (SELECT FROM erased_threads AS e WHERE e.bucket = $3 AND e.thread_id = $4 AND e.recreated_at IS NULL)
      AND NOT EXISTS (SELECT FROM erased_threads AS e WHERE e.bucket = $1 AND e.thread_id = $2 AND e.recreated_at IS NULL)
      AND NOT EXISTS (SELECT FROM erased_tenants AS z WHERE z.tenant IN (antiphon_tenant_of($2), antiphon_tenant_of($4)))
    ON CONFLICT (bucket, thread_id) DO NOTHING
    RETURNING message_count
)
, copied AS (
    INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, number, sequence_num, batch_type, role, content,
                          tool_calls, tool_call_id, metadata, token_count, parent_id, attempt, created_at, out_of_range,
                          started_after_ms, imported_at, parent_batch)
    SELECT $3, $4, m.position, m.message_id, m.batch_id, m.number, m.sequence_num, m.batch_type, m.role, m.content, m.tool_calls,
           m.tool_call_id, m.metadata, m.token_count, lag(m.position) OVER (ORDER BY m.position), m.attempt, m.created_at,
           m.out_of_range, m.started_after_ms, m.imported_at, m.parent_batch
    FROM messages AS m
    WHERE m.bucket = $1 AND m.thread_id = $2 AND m.batch_id <= $5 AND EXISTS (SELECT FROM made)
    ORDER BY m.position
)
, compacted AS (
    INSERT INTO compactions (bucket, thread_id, compaction_id, through_position, kept_positions, summary, strategy, provenance, previous_id,
                             valid_from_position, undone_at_position, actor, created_at)
    SELECT $3, $4, c.compaction_id, c.through_position, c.kept_positions, c.summary, c.strategy, c.provenance, c.previous_id,
           c.valid_from_position, CASE WHEN c.undone_at_position < n.position THEN c.undone_at_position END, c.actor, c.created_at
    FROM compactions AS c, next AS n
    WHERE c.bucket = $1 AND c.thread_id = $2 AND c.compaction_id < n.position AND EXISTS (SELECT FROM made)
      -- A pending compaction gets its summary in the original thread only.
      AND c.pending_task IS NULL
)
SELECT message_count AS count FROM made
