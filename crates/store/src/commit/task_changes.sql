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
        metadata = CASE WHEN c.metadata IS NULL THEN t.metadata
                        -- The same rule as `model::Task::edit`: an edit neither removes nor adds
                        -- keys that the system writes.
                        WHEN t.kind <> 'task' OR t.metadata -> 'synthetic' = 'true'
                        THEN (c.metadata::jsonb - system_tasks.keys)
                             || coalesce((SELECT jsonb_object_agg(k.key, k.value) FROM jsonb_each(t.metadata) AS k
                                          WHERE k.key = ANY (system_tasks.keys)), '{}')
                        ELSE c.metadata::jsonb END
    FROM changes AS c,
         (SELECT '{thread_id,turn_id,assistant_message_id,batch_id,compaction_id,continues,continuation_number,synthetic}'::text[]) AS system_tasks (keys)
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
