-- $1 bucket, $2 timer, $3 thread, $4 agent, $5 bucket of the agent, $6 state, $7 body, $8 created,
-- $9 due, $10 ended (times in ms), $11 ended by, $12 the turn that the timer started.
INSERT INTO timers (bucket, timer_id, kind, thread_id, agent_id, agent_bucket, state, body, created_at, due_at, ended_at, ended_by, fired_turn)
SELECT $1, $2, 'follow_up', $3, $4, $5, CASE WHEN $6 = 'pending' THEN 'cancelled' ELSE $6 END, $7,
       'epoch'::timestamptz + $8::bigint * interval '1 ms', 'epoch'::timestamptz + $9::bigint * interval '1 ms',
       coalesce('epoch'::timestamptz + $10::bigint * interval '1 ms', clock_timestamp()),
       CASE WHEN $6 = 'pending' THEN 'import' ELSE $11 END, $12
WHERE NOT EXISTS (SELECT FROM erased_threads AS e
                  WHERE e.bucket = $1 AND e.thread_id = $3 AND e.recreated_at IS NULL)
ON CONFLICT (bucket, timer_id) DO NOTHING
RETURNING timer_id
