-- $1 bucket, $2 agent, $3 bucket of the agent, $4 command, $5 actor; arrays: $6 fact, $7 scope, $8
-- thread, $9 bucket of the thread, $10 answer, $11 text, $12 kind, $13 confidence, $14 the fact
-- that supersedes it, $15 when it was written, in ms. Facts that exist already, or were found in an
-- erased thread, are skipped.
WITH given AS (
    SELECT g.*
    FROM unnest($6::text[], $7::text[], $8::text[], $9::smallint[], $10::text[], $11::text[], $12::text[], $13::real[], $14::text[], $15::bigint[])
         AS g (fact_id, scope, thread_id, thread_bucket, assistant_message_id, text, kind, confidence, superseded_by, created_ms)
    WHERE NOT EXISTS (SELECT FROM erased_threads AS e
                      WHERE e.bucket = g.thread_bucket AND e.thread_id = g.thread_id AND e.recreated_at IS NULL OFFSET 0)
)
, added AS (
    INSERT INTO facts (bucket, agent_id, fact_id, scope, thread_id, assistant_message_id, text, kind, confidence, superseded_by, created_at)
    SELECT $1, $2, g.fact_id, g.scope, g.thread_id, g.assistant_message_id, g.text, g.kind, g.confidence, g.superseded_by,
           to_timestamp(g.created_ms / 1000.0)
    FROM given AS g
    ON CONFLICT (bucket, agent_id, fact_id) DO NOTHING
    RETURNING 1
)
, audited AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target)
    SELECT $3, $2, $4, $5, 'import_facts', (SELECT count(*) FROM added)::text WHERE EXISTS (SELECT FROM added)
    ON CONFLICT (bucket, subject_id, command_id) DO NOTHING
)
SELECT count(*) AS count FROM added
