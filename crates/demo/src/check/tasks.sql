-- The outcome of the demo's tasks, from the tables alone. $1, $2: buckets and ids of the agents;
-- $3: tasks per agent; $4, $5: agents and ids of the tasks that must fail permanently.
WITH agents_of_demo AS (
    SELECT * FROM unnest($1::smallint[], $2::text[]) AS w (bucket, agent_id)
), sent AS (
    SELECT w.bucket, w.agent_id, n AS number, 'task-' || lpad(n::text, 2, '0') AS task_id
    FROM agents_of_demo AS w, generate_series(1, $3::integer) AS n
), doomed AS (
    SELECT * FROM unnest($4::text[], $5::text[]) AS d (agent_id, task_id)
), known AS (
    SELECT t.*, format('t%s-%s', lpad(to_hex(t.bucket::integer), 4, '0'), t.position) AS turn
    FROM agents_of_demo AS w JOIN agent_tasks AS t USING (bucket, agent_id)
), turns AS (
    -- Each turn is one batch.
    SELECT m.thread_id, m.batch_id, count(*) AS rows,
           min(m.position) AS first_position, max(m.position) AS last_position,
           (array_agg(m.message_id ORDER BY m.sequence_num))[1] AS input_id,
           (array_agg(m.message_id ORDER BY m.sequence_num DESC))[1] AS answer_id,
           min((m.metadata->>'number')::integer) FILTER (WHERE m.role = 'user') AS number,
           count(*) FILTER (WHERE m.role = 'user') AS inputs,
           (array_agg(m.role ORDER BY m.sequence_num DESC))[1] = 'assistant'
               AND (array_agg(m.tool_calls IS NULL ORDER BY m.sequence_num DESC))[1] AS is_answered
    FROM agents_of_demo AS w JOIN messages AS m ON m.bucket = w.bucket AND m.thread_id = w.agent_id
    GROUP BY m.thread_id, m.batch_id
), ended AS (
    -- Each turn in the history, with its task. In a run after the first, the id of the answer ends
    -- with the number of the run.
    SELECT u.*, k.task_id, k.position,
           coalesce(u.inputs = 1 AND u.is_answered AND u.answer_id ~ ('^' || k.turn || '-a[0-9]*$'), false) AS is_whole,
           lag(u.number) OVER by_place AS number_before, lag(u.last_position) OVER by_place AS end_before,
           lag(k.position) OVER by_place AS position_before
    FROM turns AS u LEFT JOIN known AS k ON k.agent_id = u.thread_id AND u.input_id = k.turn || '-q'
    WINDOW by_place AS (PARTITION BY u.thread_id ORDER BY u.first_position)
), per_task AS (
    SELECT s.agent_id, s.task_id, count(DISTINCT k.position) AS rows, min(k.status) AS status,
           count(e.batch_id) AS turns, bool_or(d.task_id IS NOT NULL) AS is_doomed
    FROM sent AS s
    LEFT JOIN known AS k USING (agent_id, task_id)
    LEFT JOIN ended AS e ON e.thread_id = s.agent_id AND e.task_id = s.task_id
    LEFT JOIN doomed AS d ON d.agent_id = s.agent_id AND d.task_id = s.task_id
    GROUP BY s.agent_id, s.task_id
)
SELECT
    (SELECT count(*) FROM sent) AS sent,
    (SELECT count(*) FROM per_task WHERE rows = 1) AS stored_once,
    (SELECT count(*) FROM per_task WHERE status = 'completed' AND turns = 1 AND NOT is_doomed) AS completed_once,
    (SELECT count(*) FROM per_task WHERE status = 'failed' AND turns = 0 AND is_doomed) AS failed_as_meant,
    (SELECT count(*) FROM per_task WHERE turns > 1) AS done_twice,
    (SELECT count(*) FROM ended WHERE is_whole) AS whole_turns,
    (SELECT count(*) FROM ended WHERE NOT is_whole) AS torn_turns,
    (SELECT count(*) FROM ended WHERE answer_id ~ '-a[0-9]+$') AS later_runs,
    -- Checks the order of the sent numbers and of the queue, and that turns do not overlap.
    (SELECT count(*) FROM ended
     WHERE number <= number_before OR position <= position_before OR first_position <= end_before) AS out_of_order,
    (SELECT count(DISTINCT thread_id) FROM ended) AS agents_seen,
    (SELECT count(*) FROM dead_letters AS l JOIN agents_of_demo AS w ON l.thread_id = w.agent_id
     WHERE l.bucket = w.bucket) AS dead_letters
