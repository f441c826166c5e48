-- $1 worker, $2 ttl. Returns the other live workers.
WITH beat AS (
    INSERT INTO workers (worker_id, lease_until) VALUES ($1, clock_timestamp() + $2)
    ON CONFLICT (worker_id) DO UPDATE SET lease_until = excluded.lease_until
)
, swept AS (
    -- SKIP LOCKED: two workers that sweep at the same time must not wait for each other.
    DELETE FROM workers
    WHERE worker_id IN (
        SELECT worker_id FROM workers
        WHERE lease_until < clock_timestamp() - interval '1 hour' AND worker_id <> $1
        FOR UPDATE SKIP LOCKED
    )
)
SELECT worker_id FROM workers WHERE lease_until > clock_timestamp() AND worker_id <> $1
