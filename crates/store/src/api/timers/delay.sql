-- $1 bucket, $2 timer, $3 agent, $4 due, ms, $5 body, $6 how many an agent may have. If the row
-- exists already, its body shows whether it is the same task.
WITH known AS (SELECT body FROM timers WHERE bucket = $1 AND timer_id = $2)
, room AS (
    SELECT count(*) < $6 AS is_there
    FROM (SELECT FROM timers WHERE bucket = $1 AND agent_id = $3 AND kind = 'task' AND state = 'pending' LIMIT $6) AS t
)
, erased AS (
    SELECT EXISTS (SELECT FROM erased_threads
                   WHERE bucket = $1 AND thread_id = $3 AND recreated_at IS NULL)
           OR EXISTS (SELECT FROM erased_tenants AS z WHERE z.tenant = antiphon_tenant_of($3)) AS is_erased
)
, added AS (
    INSERT INTO timers (bucket, timer_id, kind, agent_id, agent_bucket, due_at, body)
    SELECT $1, $2, 'task', $3, $1, 'epoch'::timestamptz + $4::bigint * interval '1 ms', $5
    FROM room CROSS JOIN erased
    WHERE room.is_there AND NOT erased.is_erased
    ON CONFLICT (bucket, timer_id) DO NOTHING
    RETURNING 1
)
SELECT EXISTS (SELECT FROM added) AS is_added, (SELECT body FROM known) AS known, NOT room.is_there AS is_full, erased.is_erased
FROM room CROSS JOIN erased
