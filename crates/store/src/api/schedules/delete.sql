-- $1 bucket, $2 agent, $3 name.
WITH gone AS (
    DELETE FROM schedules WHERE bucket = $1 AND agent_id = $2 AND name = $3 RETURNING name
)
, cancelled AS (
    UPDATE timers AS t SET state = 'cancelled', ended_at = clock_timestamp(), ended_by = 'schedule'
    WHERE t.bucket = $1 AND t.agent_id = $2 AND t.kind = 'schedule' AND t.state = 'pending' AND t.body ->> 'schedule' = $3
      AND EXISTS (SELECT FROM gone)
)
SELECT name FROM gone
