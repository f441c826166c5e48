-- $1 worker, $2 ttl, $3 how many at most.
WITH free AS MATERIALIZED (
    -- A separate list, so that LIMIT is applied once. After waiting for a row, READ COMMITTED
    -- evaluates the row again, so a partition that another worker has just taken is no longer free.
    -- SKIP LOCKED: concurrent workers share the free partitions instead of queueing for the first
    -- one.
    SELECT partition_id
    FROM partitions
    WHERE owner IS NULL OR lease_until IS NULL OR lease_until <= clock_timestamp()
    ORDER BY partition_id
    LIMIT $3
    FOR UPDATE SKIP LOCKED
)
UPDATE partitions AS p
SET epoch = antiphon_next_epoch(p.epoch), owner = $1, lease_until = clock_timestamp() + $2,
    -- Subscribers may have seen positions that were assigned before the store went back in time, so
    -- the next positions start at the current time.
    position_ms = greatest(p.position_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint),
    updated_at = clock_timestamp()
FROM free
WHERE p.partition_id = free.partition_id
RETURNING p.partition_id, p.epoch, p.commits, p.checkpoint, p.incarnation, p.position_ms, p.read_seq, p.read_at_ns,
          (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS granted_at_ms
