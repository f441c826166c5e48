-- What opens a turn or puts a task into a queue, as JSON. The metadata show it too, for people and models.
--
-- NULL: a person's input, or a task that was sent, which are nearly all and so take no room; or a row of a build before this column, whose
-- origin is read from its metadata.
ALTER TABLE tasks ADD COLUMN origin jsonb;
ALTER TABLE spilled_turns ADD COLUMN origin jsonb;
ALTER TABLE failed_turns ADD COLUMN origin jsonb;

-- The batch that an input continues, from the metadata of its turn or task; NULL: they do not say one as the system does.
CREATE FUNCTION antiphon_continued_batch(metadata jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object('batch', metadata -> 'continues', 'number', metadata -> 'continuation_number', 'turn', metadata -> 'turn_id')
    WHERE metadata ->> 'continues' ~ '^([1-9][0-9]{0,17}|[1-8][0-9]{18})$' AND jsonb_typeof(metadata -> 'continues') = 'string'
      AND metadata ->> 'continuation_number' ~ '^[0-9]{1,9}$' AND jsonb_typeof(metadata -> 'continuation_number') = 'number'
      AND metadata ->> 'turn_id' ~ '^[ut]0[0-3][0-9a-f]{2}-[A-Za-z0-9_-]{1,80}$'
$$;

-- The origin of an input; NULL: a person's.
CREATE FUNCTION antiphon_turn_origin(metadata jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN metadata -> 'synthetic' IS DISTINCT FROM 'true' THEN NULL
                WHEN metadata ? 'timer_id'
                THEN CASE WHEN metadata ->> 'timer_id' ~ '^f0[0-3][0-9a-f]{2}-[0-9]{1,19}$' AND jsonb_typeof(metadata -> 'trigger_reason') = 'string'
                               AND metadata ->> 'trigger_type' IN ('check_in', 'question_unanswered', 'task_incomplete', 'waiting_for_decision')
                          THEN jsonb_build_object('kind', 'follow_up', 'timer', metadata -> 'timer_id', 'trigger', metadata -> 'trigger_type',
                                                  'reason', metadata -> 'trigger_reason') END
                WHEN metadata -> 'heartbeat' = 'true' AND metadata ->> 'continues' ~ '^([1-9][0-9]{0,17}|[1-8][0-9]{18})$'
                     AND jsonb_typeof(metadata -> 'continues') = 'string'
                THEN jsonb_build_object('kind', 'heartbeat', 'batch', metadata -> 'continues')
                ELSE antiphon_continued_batch(metadata) || '{"kind": "continuation"}' END
$$;

-- The rows of all tenants, also with the rights of an owner whom row security binds.
SET LOCAL antiphon.tenant = '*';

UPDATE spilled_turns SET origin = antiphon_turn_origin(metadata) WHERE metadata -> 'synthetic' = 'true';
UPDATE failed_turns SET origin = antiphon_turn_origin(metadata) WHERE metadata -> 'synthetic' = 'true';

-- Tasks that wait or have failed: no other task is read as one again.
UPDATE tasks AS t
SET origin = CASE
    WHEN t.kind = 'task' AND t.metadata -> 'synthetic' = 'true' THEN c.continued || '{"kind": "continuation"}'
    WHEN t.kind = 'task' THEN CASE WHEN t.task_id ~ '^s[0-9a-fA-F]{4}-[0-9a-fA-F]{24}-[0-9]{1,19}$' THEN '{"kind": "scheduled"}'::jsonb END
    WHEN t.kind = 'compaction'
    THEN CASE WHEN antiphon_origin_thread(t.agent_id, t.metadata) IS NOT NULL AND t.metadata ->> 'compaction_id' ~ '^([1-9][0-9]{0,17}|[1-8][0-9]{18})$'
                   AND jsonb_typeof(t.metadata -> 'compaction_id') = 'string'
              THEN jsonb_build_object('kind', 'summary', 'thread', antiphon_origin_thread(t.agent_id, t.metadata),
                                      'compaction', t.metadata -> 'compaction_id') END
    WHEN NOT coalesce(t.metadata ->> 'thread_id' ~ '^[A-Za-z0-9_-]{1,128}$' AND t.metadata ->> 'assistant_message_id' ~ '^[A-Za-z0-9_-]{1,128}$', false)
         OR antiphon_origin_thread(t.agent_id, t.metadata) IS NULL THEN NULL
    WHEN t.metadata -> 'synthetic' = 'true'
    THEN jsonb_build_object('kind', 'continuation_after_turn', 'thread', antiphon_origin_thread(t.agent_id, t.metadata),
                            'answer', t.metadata -> 'assistant_message_id', 'continued', c.continued)
    WHEN t.metadata ->> 'turn_id' ~ '^[ut]0[0-3][0-9a-f]{2}-[A-Za-z0-9_-]{1,80}$' AND t.metadata ->> 'batch_id' ~ '^([1-9][0-9]{0,17}|[1-8][0-9]{18})$'
         AND jsonb_typeof(t.metadata -> 'batch_id') = 'string'
    THEN jsonb_build_object('kind', 'after_turn', 'thread', antiphon_origin_thread(t.agent_id, t.metadata), 'turn', t.metadata -> 'turn_id',
                            'answer', t.metadata -> 'assistant_message_id', 'batch', t.metadata -> 'batch_id') END
FROM (
    SELECT w.bucket, w.agent_id, w.position, antiphon_continued_batch(w.metadata) AS continued
    FROM tasks AS w
    LEFT JOIN agents AS a ON a.bucket = w.bucket AND a.agent_id = w.agent_id
    WHERE w.position > coalesce(a.head_position, 0)
       OR EXISTS (SELECT FROM failed_tasks AS f WHERE f.bucket = w.bucket AND f.agent_id = w.agent_id AND f.position = w.position)
) AS c
WHERE t.bucket = c.bucket AND t.agent_id = c.agent_id AND t.position = c.position
  AND (t.kind <> 'task' OR t.metadata -> 'synthetic' = 'true' OR starts_with(t.task_id, 's'))
  AND (t.metadata -> 'synthetic' IS DISTINCT FROM 'true' OR c.continued IS NOT NULL);

DROP FUNCTION antiphon_turn_origin(jsonb);
DROP FUNCTION antiphon_continued_batch(jsonb);

-- The metadata of a task after an operator's edit: the same rule as `model::Task::edit`. In a task that the system created, the edit neither
-- removes nor adds keys that the system writes.
CREATE FUNCTION antiphon_edited_task(kind text, metadata jsonb, edited jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN kind <> 'task' OR metadata -> 'synthetic' = 'true'
                THEN (edited - s.keys) || coalesce((SELECT jsonb_object_agg(k.key, k.value) FROM jsonb_each(metadata) AS k
                                                    WHERE k.key = ANY (s.keys)), '{}')
                ELSE edited END
    FROM (SELECT '{thread_id,turn_id,assistant_message_id,batch_id,compaction_id,continues,continuation_number,synthetic}'::text[]) AS s (keys)
$$;
