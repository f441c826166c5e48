-- $1 worker, $2 ttl, $3 how many at most.
WITH free AS MATERIALIZED (
    -- In a list of its own, so that LIMIT is counted once. After a wait for a row READ COMMITTED looks at it again:
    -- what another worker has just taken is not free any more. SKIP LOCKED: several workers that come at the same time
    -- share the free ones instead of queueing for the first.
    SELECT partition_id
    FROM partitions
    WHERE owner IS NULL OR lease_until IS NULL OR lease_until <= clock_timestamp()
    ORDER BY partition_id
    LIMIT $3
    FOR UPDATE SKIP LOCKED
)
UPDATE partitions AS p
SET epoch = antiphon_next_epoch(p.epoch), owner = $1, lease_until = clock_timestamp() + $2,
    -- Positions that a store knew before it went back in time may have been shown: the next ones are of now.
    position_ms = greatest(p.position_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint),
    updated_at = clock_timestamp()
FROM free
WHERE p.partition_id = free.partition_id
RETURNING p.partition_id, p.epoch, p.commits, p.checkpoint, p.incarnation, p.position_ms, p.read_seq, p.read_at_ns,
          (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS granted_at_ms
