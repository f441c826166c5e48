-- Operators work over HTTP: gateways show incidents to the default tenant, which operates the installation, and acknowledge them for it.
CREATE POLICY of_operators ON incidents USING (antiphon_scope() = '-') WITH CHECK (antiphon_scope() = '-');

-- A dead letter whose owner cannot be read, as one of a malformed subject, is the default tenant's. Without this rule row security hides it from all.
ALTER POLICY tenant_isolation ON dead_letters
    USING (antiphon_tenant_visible(coalesce(antiphon_dead_letter_owner(thread_id, subject), '')))
    WITH CHECK (antiphon_tenant_visible(coalesce(antiphon_dead_letter_owner(thread_id, subject), '')));

-- Copies a thread up to a batch, all or nothing, as it was when the statement began: $1 bucket, $2 thread, $3 bucket and $4 id of the new one,
-- $5 last batch; $6 act, $7 actor and $8 target of the audit. Returns how many messages, or no row. With the rights of the owner: gateways may
-- copy what is stored, and write no message of their own. What they copy is within one tenant, that of their session.
CREATE FUNCTION antiphon_fork_thread(smallint, text, smallint, text, bigint, text, text, text) RETURNS SETOF bigint
    LANGUAGE sql SECURITY DEFINER
AS $$
WITH next AS MATERIALIZED (
    -- Where the first batch begins that is left out: compactions from there on are left out as well.
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
      AND antiphon_tenant_of($2) = antiphon_tenant_of($4)
      -- The owner of the tables, with whose rights this runs, may see all tenants: the caller may not, unless it may itself.
      AND (current_setting('antiphon.tenant', true) = antiphon_tenant_of($4)
           OR has_function_privilege(session_user, 'antiphon_all_tenants()'::regprocedure, 'EXECUTE'))
      AND NOT EXISTS (SELECT FROM erased_threads AS e WHERE e.bucket = $3 AND e.thread_id = $4 AND e.recreated_at IS NULL)
      AND NOT EXISTS (SELECT FROM erased_threads AS e WHERE e.bucket = $1 AND e.thread_id = $2 AND e.recreated_at IS NULL)
      AND NOT EXISTS (SELECT FROM erased_tenants AS z WHERE z.tenant = antiphon_tenant_of($4))
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
      -- The summary that one waits for comes to the original alone.
      AND c.pending_task IS NULL
)
, audited AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target)
    SELECT $3, $4, $6, $7, 'fork_thread', $8 FROM made
)
SELECT message_count FROM made
$$;
REVOKE EXECUTE ON FUNCTION antiphon_fork_thread(smallint, text, smallint, text, bigint, text, text, text) FROM PUBLIC;
-- Temporary tables are found last: a caller's own table `messages` must not be read with the rights of the owner.
DO $$
BEGIN
    EXECUTE format(
        'ALTER FUNCTION antiphon_fork_thread(smallint, text, smallint, text, bigint, text, text, text) SET search_path = %I, pg_temp',
        current_schema()
    );
END
$$;
