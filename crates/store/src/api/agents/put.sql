-- $1 bucket, $2 agent, $3 workflow, $4 settings, $5 act, $6 actor.
WITH put AS (
    INSERT INTO agent_settings AS s (bucket, agent_id, workflow, settings)
    VALUES ($1, $2, $3, $4)
    ON CONFLICT (bucket, agent_id) DO UPDATE
    SET workflow = excluded.workflow, settings = excluded.settings, version = s.version + 1,
        updated_at = clock_timestamp()
    RETURNING version
), named AS (
    -- Its own thread takes messages again, should it have been erased.
    UPDATE erased_threads SET recreated_at = clock_timestamp() WHERE bucket = $1 AND thread_id = $2 AND recreated_at IS NULL
), audited AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action) VALUES ($1, $2, $5, $6, 'put_settings')
)
SELECT version FROM put
