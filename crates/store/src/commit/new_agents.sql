-- Agents of the tasks, except those that have a row in agent_rows; each once.
, introduced AS (
    -- Every agent that has a task has a row: a new owner finds the queues by these rows.
    INSERT INTO agents (bucket, agent_id)
    SELECT i.bucket, i.agent_id
    FROM new_agent_rows AS i
    WHERE NOT EXISTS (SELECT FROM agents AS a WHERE a.bucket = i.bucket AND a.agent_id = i.agent_id OFFSET 0)
    ON CONFLICT (bucket, agent_id) DO NOTHING
)
