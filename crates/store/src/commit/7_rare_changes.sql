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
-- Turns that failed, each once: $15 commit, $16 bucket, $17 thread, $18 turn, $19 agent, $20 run,
-- $21 content, $22 metadata, $23 options, $24 origin, $25 code, $26 text, $27 is_retryable, $28
-- partial.
, failures AS (
    INSERT INTO failed_turns AS t (bucket, thread_id, turn_id, agent_id, run, content, metadata, options, origin, code, text,
                                   is_retryable, partial)
    SELECT i.bucket, i.thread_id, i.turn_id, i.agent_id, i.run, i.content, i.metadata::jsonb, i.options::jsonb, i.origin::jsonb, i.code, i.text,
           i.is_retryable, i.partial
    FROM unnest($15::bigint[], $16::smallint[], $17::text[], $18::text[], $19::text[], $20::integer[], $21::text[],
                $22::text[], $23::text[], $24::text[], $25::text[], $26::text[], $27::boolean[], $28::text[])
         AS i (number, bucket, thread_id, turn_id, agent_id, run, content, metadata, options, origin, code, text, is_retryable,
               partial)
    JOIN fence USING (number)
    ON CONFLICT (bucket, thread_id, turn_id) DO UPDATE
    SET agent_id = excluded.agent_id, run = excluded.run, content = excluded.content, metadata = excluded.metadata,
        options = excluded.options, origin = excluded.origin, code = excluded.code, text = excluded.text, is_retryable = excluded.is_retryable,
        partial = excluded.partial,
        failed_at = CASE WHEN t.run = excluded.run THEN t.failed_at ELSE excluded.failed_at END
    RETURNING t.bucket, t.thread_id, t.origin
)
, answered AS (
    -- A person has written. Pending follow-ups from before are cancelled, and one that has fired
    -- but has no answer yet is withdrawn.
    UPDATE timers AS t
    SET state = CASE t.state WHEN 'pending' THEN 'cancelled' ELSE 'withdrawn' END, ended_at = clock_timestamp(), ended_by = 'message'
    FROM failures AS f
    WHERE t.bucket = f.bucket AND t.thread_id = f.thread_id AND t.kind = 'follow_up'
      AND f.origin IS NULL
      AND (t.state = 'pending' OR (t.state = 'fired' AND NOT EXISTS (
               -- The first message of the follow-up's turn.
               SELECT FROM messages AS m
               WHERE m.bucket = t.bucket AND m.message_id = t.fired_turn || '-q' AND m.thread_id = t.thread_id
               OFFSET 0)))
)
-- Failed turns to delete: $29 commit, $30 bucket, $31 thread, $32 turn.
, dropped AS (
    DELETE FROM failed_turns AS f
    USING unnest($29::bigint[], $30::smallint[], $31::text[], $32::text[]) AS i (number, bucket, thread_id, turn_id)
    JOIN fence USING (number)
    WHERE f.bucket = i.bucket AND f.thread_id = i.thread_id AND f.turn_id = i.turn_id
)
-- Saved inputs that have ended: $33 commit, $34 bucket, $35 thread, $36 turn.
, settled AS (
    DELETE FROM spilled_turns AS o
    USING unnest($33::bigint[], $34::smallint[], $35::text[], $36::text[]) AS i (number, bucket, thread_id, turn_id)
    JOIN fence USING (number)
    WHERE o.bucket = i.bucket AND o.thread_id = i.thread_id AND o.turn_id = i.turn_id
)
-- Audit log: $37 commit, $38 bucket, $39 subject, $40 command, $41 actor, $42 action, $43 target,
-- $44 error.
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
    FROM unnest($37::bigint[], $38::smallint[], $39::text[], $40::text[], $41::text[], $42::text[], $43::text[],
                $44::text[])
         AS i (number, bucket, subject_id, command_id, actor, action, target, error)
    JOIN fence USING (number)
    ON CONFLICT (bucket, subject_id, command_id) DO NOTHING
)
