-- Facts found by memory tasks. `queue` is the thread of the task's turn; `supersedes` has
-- space-separated ids of facts.
, found_facts AS MATERIALIZED (
    SELECT i.bucket, i.agent_id, i.answer || '-f' || i.ordinal AS fact_id,
           -- If the user name is too long for an index, the fact belongs to the thread.
           CASE WHEN octet_length(t.metadata ->> 'user_id') <= 256 THEN 'user:' || (t.metadata ->> 'user_id')
                ELSE 'thread:' || t.thread_id END AS scope,
           i.thread_id, i.answer, i.text, i.kind, i.confidence, i.supersedes, i.kept_per_scope
    FROM fact_rows AS i
    JOIN begun AS b ON b.bucket = i.bucket AND b.thread_id = i.queue AND b.turn_id = i.turn_id AND b.is_new
    -- For an erased thread, nothing is remembered.
    JOIN threads AS t ON t.bucket = i.thread_bucket AND t.thread_id = i.thread_id
)
, noted_facts AS (
    INSERT INTO facts (bucket, agent_id, fact_id, scope, thread_id, assistant_message_id, text, kind, confidence)
    -- A fact that is already stored in the same words, or was found twice, is stored once.
    SELECT DISTINCT ON (f.bucket, f.agent_id, f.scope, lower(f.text))
           f.bucket, f.agent_id, f.fact_id, f.scope, f.thread_id, f.answer, f.text, f.kind, f.confidence
    FROM found_facts AS f
    WHERE NOT EXISTS (
        SELECT FROM facts AS k
        WHERE k.bucket = f.bucket AND k.agent_id = f.agent_id AND k.scope = f.scope AND k.superseded_by IS NULL
          AND lower(k.text) = lower(f.text)
        OFFSET 0)
    ORDER BY f.bucket, f.agent_id, f.scope, lower(f.text), f.fact_id
    ON CONFLICT (bucket, agent_id, fact_id) DO NOTHING
    RETURNING bucket, agent_id, fact_id
)
-- Supersedes only facts of the same user or thread, because a model may name any id.
, superseded_facts AS (
    UPDATE facts AS o SET superseded_by = n.fact_id
    FROM noted_facts AS n
    JOIN found_facts AS f USING (bucket, agent_id, fact_id)
    WHERE o.bucket = n.bucket AND o.agent_id = n.agent_id AND o.fact_id = ANY (string_to_array(f.supersedes, ' ')) AND o.scope = f.scope
      AND o.superseded_by IS NULL
)
, forgotten_facts AS (
    DELETE FROM facts AS f
    USING (SELECT DISTINCT bucket, agent_id, scope, kept_per_scope FROM found_facts) AS s
    CROSS JOIN LATERAL (
        SELECT o.fact_id FROM facts AS o
        WHERE o.bucket = s.bucket AND o.agent_id = s.agent_id AND o.scope = s.scope
        ORDER BY o.created_at DESC OFFSET s.kept_per_scope
    ) AS o
    WHERE f.bucket = s.bucket AND f.agent_id = s.agent_id AND f.fact_id = o.fact_id
)
