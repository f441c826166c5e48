-- Marks of failed tasks.
, marks AS (
    INSERT INTO failed_tasks (bucket, agent_id, position, code, text)
    SELECT i.bucket, i.agent_id, i.position, i.code, i.text
    FROM failed_task_rows AS i
    -- If the queue has already moved on, the completed task must not be marked as failed.
    WHERE i.item IS NULL OR i.item IN (SELECT item FROM won)
    ON CONFLICT (bucket, agent_id, position) DO NOTHING
)
