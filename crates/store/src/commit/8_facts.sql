-- Facts found by memory tasks: $1 commit, $2 bucket, $3 thread of the queue, $4 turn, $5 agent, $6
-- thread that the facts are about, $7 bucket and $8 answer of that thread, $9 number of the fact,
-- $10 text, $11 kind, $12 confidence, $13 space-separated ids of the facts that it supersedes, $14
-- how many facts of a scope are kept.
, found_facts AS MATERIALIZED (
    SELECT i.bucket, i.agent_id, i.answer || '-f' || i.ordinal AS fact_id,
           -- If the user name is too long for an index, the fact belongs to the thread.
           CASE WHEN octet_length(t.metadata ->> 'user_id') <= 256 THEN 'user:' || (t.metadata ->> 'user_id')
                ELSE 'thread:' || t.thread_id END AS scope,
           i.thread_id, i.answer, i.text, i.kind, i.confidence, i.supersedes
    FROM unnest($1::bigint[], $2::smallint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::smallint[],
                $8::text[], $9::smallint[], $10::text[], $11::text[], $12::real[], $13::text[])
         AS i (number, bucket, queue, turn_id, agent_id, thread_id, thread_bucket, answer, ordinal, text, kind, confidence, supersedes)
    JOIN fence USING (number)
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
    USING (SELECT DISTINCT bucket, agent_id, scope FROM found_facts) AS s
    CROSS JOIN LATERAL (
        SELECT o.fact_id FROM facts AS o
        WHERE o.bucket = s.bucket AND o.agent_id = s.agent_id AND o.scope = s.scope
        ORDER BY o.created_at DESC OFFSET $14::bigint
    ) AS o
    WHERE f.bucket = s.bucket AND f.agent_id = s.agent_id AND f.fact_id = o.fact_id
)
