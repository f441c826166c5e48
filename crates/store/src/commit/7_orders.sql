-- Marks: $1 commit, $2 bucket, $3 agent, $4 position, $5 code, $6 text, $7 item of the agents above, if this commit has one.
, marks AS (
    INSERT INTO failed_tasks (bucket, agent_id, position, code, text)
    SELECT i.bucket, i.agent_id, i.position, i.code, i.text
    FROM unnest($1::bigint[], $2::smallint[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bigint[])
         AS i (number, bucket, agent_id, position, code, text, item)
    JOIN fence USING (number)
    -- A queue that has moved on already must not get a mark for what it has done.
    WHERE i.item IS NULL OR i.item IN (SELECT item FROM won)
    ON CONFLICT (bucket, agent_id, position) DO NOTHING
)
-- Changes of tasks, one a task: $8 commit, $9 bucket, $10 agent, $11 where it stands, $12 where it will stand (NULL: it goes),
-- $13 content, $14 metadata, $15 digest (NULL: as they are).
, changes AS MATERIALIZED (
    SELECT i.*, t.task_id
    FROM unnest($8::bigint[], $9::smallint[], $10::text[], $11::bigint[], $12::bigint[], $13::text[], $14::text[],
                $15::bigint[])
         AS i (number, bucket, agent_id, old, new, content, metadata, digest)
    JOIN fence USING (number)
    JOIN tasks AS t ON t.bucket = i.bucket AND t.agent_id = i.agent_id AND t.position = i.old
)
, changed AS (
    UPDATE tasks AS t
    SET position = c.new, content = coalesce(c.content, t.content), metadata = coalesce(c.metadata::jsonb, t.metadata)
    FROM changes AS c
    WHERE t.bucket = c.bucket AND t.agent_id = c.agent_id AND t.position = c.old AND c.new IS NOT NULL
)
, renamed AS (
    -- The position: the id may mean a later task by now.
    UPDATE task_ids AS t
    SET position = c.new, digest = coalesce(c.digest, t.digest)
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
-- Turns that failed, each once: $16 commit, $17 bucket, $18 thread, $19 turn, $20 agent, $21 run, $22 policy, $23 content,
-- $24 metadata, $25 work_request, $26 memory, $27 correlation_id, $28 code, $29 text, $30 is_retryable, $62 partial, $63 parameters.
, failures AS (
    INSERT INTO failed_turns AS t (bucket, thread_id, turn_id, agent_id, run, policy, content, metadata, work_request,
                                   memory, correlation_id, code, text, is_retryable, partial, parameters)
    SELECT i.bucket, i.thread_id, i.turn_id, i.agent_id, i.run, i.policy, i.content, i.metadata::jsonb, i.work_request,
           i.memory, i.correlation_id, i.code, i.text, i.is_retryable, i.partial, i.parameters::jsonb
    FROM unnest($16::bigint[], $17::smallint[], $18::text[], $19::text[], $20::text[], $21::integer[], $22::text[],
                $23::text[], $24::text[], $25::boolean[], $26::boolean[], $27::text[], $28::text[], $29::text[],
                $30::boolean[], $62::text[], $63::text[])
         AS i (number, bucket, thread_id, turn_id, agent_id, run, policy, content, metadata, work_request, memory,
               correlation_id, code, text, is_retryable, partial, parameters)
    JOIN fence USING (number)
    ON CONFLICT (bucket, thread_id, turn_id) DO UPDATE
    SET agent_id = excluded.agent_id, run = excluded.run, policy = excluded.policy, content = excluded.content,
        metadata = excluded.metadata, work_request = excluded.work_request, memory = excluded.memory,
        correlation_id = excluded.correlation_id, code = excluded.code, text = excluded.text,
        is_retryable = excluded.is_retryable, partial = excluded.partial, parameters = excluded.parameters,
        failed_at = CASE WHEN t.run = excluded.run THEN t.failed_at ELSE excluded.failed_at END
)
-- Failed turns that go: $31 commit, $32 bucket, $33 thread, $34 turn.
, dropped AS (
    DELETE FROM failed_turns AS f
    USING unnest($31::bigint[], $32::smallint[], $33::text[], $34::text[]) AS i (number, bucket, thread_id, turn_id)
    JOIN fence USING (number)
    WHERE f.bucket = i.bucket AND f.thread_id = i.thread_id AND f.turn_id = i.turn_id
)
-- Inputs that are saved, each once: $35 commit, $36 bucket, $37 thread, $38 turn, $39 agent, $40 run, $41 policy,
-- $42 content, $43 metadata, $44 work_request, $45 memory, $46 actor, $47 correlation_id, $48 stream_seq, $49 incarnation,
-- $64 parameters.
, inputs AS (
    INSERT INTO spilled_turns AS t (bucket, thread_id, turn_id, agent_id, run, policy, content, metadata, work_request,
                                 memory, actor, correlation_id, stream_seq, incarnation, parameters)
    SELECT i.bucket, i.thread_id, i.turn_id, i.agent_id, i.run, i.policy, i.content, i.metadata::jsonb, i.work_request,
           i.memory, i.actor, i.correlation_id, i.stream_seq, i.incarnation, i.parameters::jsonb
    FROM unnest($35::bigint[], $36::smallint[], $37::text[], $38::text[], $39::text[], $40::integer[], $41::text[],
                $42::text[], $43::text[], $44::boolean[], $45::boolean[], $46::text[], $47::text[], $48::bigint[],
                $49::text[], $64::text[])
         AS i (number, bucket, thread_id, turn_id, agent_id, run, policy, content, metadata, work_request, memory, actor,
               correlation_id, stream_seq, incarnation, parameters)
    JOIN fence USING (number)
    -- The place in the queue stays: it came when it came.
    ON CONFLICT (bucket, thread_id, turn_id) DO UPDATE
    SET agent_id = excluded.agent_id, run = excluded.run, policy = excluded.policy, content = excluded.content,
        metadata = excluded.metadata, work_request = excluded.work_request, memory = excluded.memory,
        actor = excluded.actor, correlation_id = excluded.correlation_id, parameters = excluded.parameters
)
-- Saved inputs that have ended: $50 commit, $51 bucket, $52 thread, $53 turn.
, settled AS (
    DELETE FROM spilled_turns AS o
    USING unnest($50::bigint[], $51::smallint[], $52::text[], $53::text[]) AS i (number, bucket, thread_id, turn_id)
    JOIN fence USING (number)
    WHERE o.bucket = i.bucket AND o.thread_id = i.thread_id AND o.turn_id = i.turn_id
)
-- Audit log: $54 commit, $55 bucket, $56 subject, $57 command, $58 actor, $59 action, $60 target, $61 error.
, audited AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, error)
    SELECT i.bucket, i.subject_id, i.command_id, i.actor, i.action, i.target, i.error
    FROM unnest($54::bigint[], $55::smallint[], $56::text[], $57::text[], $58::text[], $59::text[], $60::text[],
                $61::text[])
         AS i (number, bucket, subject_id, command_id, actor, action, target, error)
    JOIN fence USING (number)
    ON CONFLICT (bucket, subject_id, command_id) DO NOTHING
)
