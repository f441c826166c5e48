-- $1 bucket, $2 agent, $3 workflow, $4 settings, $5 act, $6 actor. Returns NULL and writes nothing
-- when the agent's own thread is being erased.
WITH mark AS MATERIALIZED (
    SELECT erasing FROM erased_threads WHERE bucket = $1 AND thread_id = $2 FOR UPDATE
), put AS (
    INSERT INTO agent_settings AS s (bucket, agent_id, workflow, settings)
    SELECT $1, $2, $3, $4 WHERE NOT EXISTS (SELECT FROM mark WHERE erasing IS NOT NULL)
    ON CONFLICT (bucket, agent_id) DO UPDATE
    SET workflow = excluded.workflow, settings = excluded.settings, version = s.version + 1,
        updated_at = clock_timestamp()
    RETURNING version
), named AS (
    -- If the agent's own thread was erased, it accepts messages again.
    UPDATE erased_threads SET recreated_at = clock_timestamp()
    WHERE bucket = $1 AND thread_id = $2 AND recreated_at IS NULL AND EXISTS (SELECT FROM put)
), audited AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action)
    SELECT $1, $2, $5, $6, 'put_settings' FROM put
)
SELECT (SELECT version FROM put) AS version
