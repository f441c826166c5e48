-- Changes of stored tasks, one per task. Without a new position the task is deleted; without a
-- content or metadata they stay.
, changes AS MATERIALIZED (
    SELECT i.*, t.task_id
    FROM task_change_rows AS i
    JOIN tasks AS t ON t.bucket = i.bucket AND t.agent_id = i.agent_id AND t.position = i.old
)
, changed AS (
    UPDATE tasks AS t
    SET position = c.new, content = coalesce(c.content, t.content),
        -- The same rule as `model::Task::edit`.
        metadata = CASE WHEN c.metadata IS NULL THEN t.metadata
                        ELSE antiphon_edited_task(t.kind, t.metadata, c.metadata::jsonb) END
    FROM changes AS c
    WHERE t.bucket = c.bucket AND t.agent_id = c.agent_id AND t.position = c.old AND c.new IS NOT NULL
)
, renamed AS (
    -- The position is compared too, because the id may belong to a later task by now.
    UPDATE task_ids AS t
    SET position = c.new
    FROM changes AS c
    WHERE t.bucket = c.bucket AND t.agent_id = c.agent_id AND t.task_id = c.task_id AND t.position = c.old
      AND c.new IS NOT NULL
)
, removed AS (
    DELETE FROM tasks AS t USING changes AS c
    WHERE t.bucket = c.bucket AND t.agent_id = c.agent_id AND t.position = c.old AND c.new IS NULL
)
, unmarked AS (
    DELETE FROM failed_tasks AS f USING changes AS c
    WHERE f.bucket = c.bucket AND f.agent_id = c.agent_id AND f.position = c.old AND c.new IS DISTINCT FROM c.old
)
