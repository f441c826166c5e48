-- $1 bucket, $2 agent, $3 name, $4 cron, $5 at, ms, $6 time zone, $7 overlap, $8 missed, $9
-- content, $10 metadata, $11 enabled, $12 actor, $13 timer, $14 due, ms (NULL: never), $15 how many
-- an agent may have.
WITH allowed AS (
    SELECT (SELECT count(*) FROM schedules WHERE bucket = $1 AND agent_id = $2 AND name <> $3) < $15 AS has_room,
           EXISTS (SELECT FROM erased_threads
                   WHERE bucket = $1 AND thread_id = $2 AND recreated_at IS NULL) AS is_erased
)
, put AS (
    INSERT INTO schedules AS s (bucket, agent_id, name, cron, at, time_zone, overlap, missed, content, metadata, enabled,
                                created_by, timer_id)
    SELECT $1, $2, $3, $4, 'epoch'::timestamptz + $5::bigint * interval '1 ms', $6, $7, $8, $9, $10, $11, $12, $13
    FROM allowed WHERE has_room AND NOT is_erased
    ON CONFLICT (bucket, agent_id, name) DO UPDATE
    SET cron = excluded.cron, at = excluded.at, time_zone = excluded.time_zone, overlap = excluded.overlap,
        missed = excluded.missed, content = excluded.content, metadata = excluded.metadata, enabled = excluded.enabled,
        timer_id = excluded.timer_id, version = s.version + 1, updated_at = clock_timestamp()
    RETURNING version
)
, replaced AS (
    -- Of two concurrent writes, the later one may not see the timer of the other. When that timer
    -- is due, it has no effect, because the schedule names another timer.
    UPDATE timers AS t SET state = 'cancelled', ended_at = clock_timestamp(), ended_by = 'replaced'
    WHERE t.bucket = $1 AND t.agent_id = $2 AND t.kind = 'schedule' AND t.state = 'pending' AND t.body ->> 'schedule' = $3
      AND EXISTS (SELECT FROM put)
)
, armed AS (
    INSERT INTO timers (bucket, timer_id, kind, agent_id, agent_bucket, due_at, body)
    SELECT $1, $13, 'schedule', $2, $1, 'epoch'::timestamptz + $14::bigint * interval '1 ms',
           jsonb_build_object('schedule', $3::text)
    FROM put WHERE $14::bigint IS NOT NULL
)
SELECT (SELECT version FROM put) AS version, is_erased FROM allowed
