-- Marks: $1 commit, $2 bucket, $3 agent, $4 position, $5 code, $6 text, $7 item of the agents
-- above, if this commit has one.
, marks AS (
    INSERT INTO failed_tasks (bucket, agent_id, position, code, text)
    SELECT i.bucket, i.agent_id, i.position, i.code, i.text
    FROM unnest($1::bigint[], $2::smallint[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bigint[])
         AS i (number, bucket, agent_id, position, code, text, item)
    JOIN fence USING (number)
    -- If the queue has already moved on, the completed task must not be marked as failed.
    WHERE i.item IS NULL OR i.item IN (SELECT item FROM won)
    ON CONFLICT (bucket, agent_id, position) DO NOTHING
)
-- Changes of tasks, one per task: $8 commit, $9 bucket, $10 agent, $11 old position, $12 new
-- position (NULL: the task is deleted), $13 content, $14 metadata (NULL: unchanged).
, changes AS MATERIALIZED (
    SELECT i.*, t.task_id
    FROM unnest($8::bigint[], $9::smallint[], $10::text[], $11::bigint[], $12::bigint[], $13::text[], $14::text[])
         AS i (number, bucket, agent_id, old, new, content, metadata)
    JOIN fence USING (number)
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
-- Turns that failed, each once: $15 commit, $16 bucket, $17 thread, $18 turn, $19 agent, $20 run,
-- $21 content, $22 metadata, $23 options, $24 code, $25 text, $26 is_retryable, $27 partial.
, failures AS (
    INSERT INTO failed_turns AS t (bucket, thread_id, turn_id, agent_id, run, content, metadata, options, code, text,
                                   is_retryable, partial)
    SELECT i.bucket, i.thread_id, i.turn_id, i.agent_id, i.run, i.content, i.metadata::jsonb, i.options::jsonb, i.code, i.text,
           i.is_retryable, i.partial
    FROM unnest($15::bigint[], $16::smallint[], $17::text[], $18::text[], $19::text[], $20::integer[], $21::text[],
                $22::text[], $23::text[], $24::text[], $25::text[], $26::boolean[], $27::text[])
         AS i (number, bucket, thread_id, turn_id, agent_id, run, content, metadata, options, code, text, is_retryable,
               partial)
    JOIN fence USING (number)
    ON CONFLICT (bucket, thread_id, turn_id) DO UPDATE
    SET agent_id = excluded.agent_id, run = excluded.run, content = excluded.content, metadata = excluded.metadata,
        options = excluded.options, code = excluded.code, text = excluded.text, is_retryable = excluded.is_retryable,
        partial = excluded.partial,
        failed_at = CASE WHEN t.run = excluded.run THEN t.failed_at ELSE excluded.failed_at END
    RETURNING t.bucket, t.thread_id, t.metadata
)
, answered AS (
    -- A person has written. Pending follow-ups from before are cancelled, and one that has fired
    -- but has no answer yet is withdrawn.
    UPDATE timers AS t
    SET state = CASE t.state WHEN 'pending' THEN 'cancelled' ELSE 'withdrawn' END, ended_at = clock_timestamp(), ended_by = 'message'
    FROM failures AS f
    WHERE t.bucket = f.bucket AND t.thread_id = f.thread_id AND t.kind = 'follow_up'
      AND f.metadata -> 'synthetic' IS DISTINCT FROM 'true'::jsonb
      AND (t.state = 'pending' OR (t.state = 'fired' AND NOT EXISTS (
               -- The first message of the follow-up's turn.
               SELECT FROM messages AS m
               WHERE m.bucket = t.bucket AND m.message_id = t.fired_turn || '-q' AND m.thread_id = t.thread_id
               OFFSET 0)))
)
-- Failed turns to delete: $28 commit, $29 bucket, $30 thread, $31 turn.
, dropped AS (
    DELETE FROM failed_turns AS f
    USING unnest($28::bigint[], $29::smallint[], $30::text[], $31::text[]) AS i (number, bucket, thread_id, turn_id)
    JOIN fence USING (number)
    WHERE f.bucket = i.bucket AND f.thread_id = i.thread_id AND f.turn_id = i.turn_id
)
-- Saved inputs that have ended: $32 commit, $33 bucket, $34 thread, $35 turn.
, settled AS (
    DELETE FROM spilled_turns AS o
    USING unnest($32::bigint[], $33::smallint[], $34::text[], $35::text[]) AS i (number, bucket, thread_id, turn_id)
    JOIN fence USING (number)
    WHERE o.bucket = i.bucket AND o.thread_id = i.thread_id AND o.turn_id = i.turn_id
)
-- Audit log: $36 commit, $37 bucket, $38 subject, $39 command, $40 actor, $41 action, $42 target,
-- $43 error.
, audited AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, error)
    SELECT i.bucket, i.subject_id, i.command_id, i.actor, i.action, i.target,
           CASE WHEN i.error IS NULL AND i.action IN ('cancel_timer', 'snooze_timer')
                     -- The owner knows the state of a timer only while it is deciding about that
                     -- timer.
                     AND NOT EXISTS (SELECT FROM timers AS t
                                     WHERE t.bucket = i.bucket AND t.timer_id = i.target AND t.state = 'pending'
                                     OFFSET 0)
                THEN 'the timer does not wait any more' ELSE i.error END
    FROM unnest($36::bigint[], $37::smallint[], $38::text[], $39::text[], $40::text[], $41::text[], $42::text[],
                $43::text[])
         AS i (number, bucket, subject_id, command_id, actor, action, target, error)
    JOIN fence USING (number)
    ON CONFLICT (bucket, subject_id, command_id) DO NOTHING
)
