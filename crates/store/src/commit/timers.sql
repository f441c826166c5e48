-- Timers that are armed, postponed, fired or ended.
, replaced AS (
    -- A thread has one pending follow-up. If this statement itself fires or ends that follow-up, it
    -- is left out here. Otherwise one of the two changes of its row would be lost, and which one is
    -- undefined.
    UPDATE timers AS t SET state = 'cancelled', ended_at = clock_timestamp(), ended_by = 'replaced'
    FROM armed_timer_rows AS a
    WHERE a.kind = 'follow_up' AND t.bucket = a.bucket AND t.thread_id = a.thread_id AND t.kind = 'follow_up'
      AND t.state = 'pending' AND t.timer_id <> a.timer_id
      AND NOT EXISTS (SELECT FROM timer_change_rows AS c
                      WHERE c.bucket = t.bucket AND c.timer_id = t.timer_id AND c.state <> 'pending')
)
, set_timers AS (
    INSERT INTO timers (bucket, timer_id, kind, thread_id, agent_id, agent_bucket, due_at, body)
    SELECT a.bucket, a.timer_id, a.kind, a.thread_id, a.agent_id, a.agent_bucket,
           -- The due time of a delayed task is given by the database clock.
           coalesce('epoch'::timestamptz + (a.body::jsonb ->> 'not_before_ms')::bigint * interval '1 ms',
                    clock_timestamp() + a.wait_ms * interval '1 ms'),
           a.body::jsonb
    FROM armed_timer_rows AS a
    ON CONFLICT (bucket, timer_id) DO NOTHING
)
, changed_timers AS (
    UPDATE timers AS t
    SET state = i.state,
        due_at = coalesce('epoch'::timestamptz + i.due_ms * interval '1 ms', t.due_at),
        ended_at = CASE WHEN i.state <> 'pending' THEN clock_timestamp() END,
        ended_by = coalesce(i.ended_by, t.ended_by),
        fired_turn = coalesce(i.fired_turn, t.fired_turn)
    FROM timer_change_rows AS i
    WHERE t.bucket = i.bucket AND t.timer_id = i.timer_id
      -- A timer that has fired can still be withdrawn; other timers that have ended do not change.
      AND (t.state = 'pending' OR (t.state = 'fired' AND i.state = 'withdrawn'))
      -- A follow-up that was replaced above stays ended. So does a follow-up that a person has
      -- answered with a turn that fails in this statement.
      AND NOT (i.state = 'pending' AND t.kind = 'follow_up'
               AND (EXISTS (SELECT FROM armed_timer_rows AS a
                            WHERE a.kind = 'follow_up' AND a.bucket = t.bucket AND a.thread_id = t.thread_id
                              AND a.timer_id <> t.timer_id)
                    OR EXISTS (SELECT FROM failed_turn_rows AS f
                               WHERE f.bucket = t.bucket AND f.thread_id = t.thread_id AND NOT f.is_synthetic)))
)
