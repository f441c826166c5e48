-- $1 the new number, $2 replicas, $3 max_bytes, $4 max_message_bytes, $5 owner.
WITH held AS MATERIALIZED (
    -- Waits for commits in flight, and locks rows in the same order as they do.
    SELECT partition_id, owner, lease_until FROM partitions ORDER BY partition_id FOR UPDATE
)
, live AS (
    SELECT partition_id, owner, (extract(epoch FROM lease_until - clock_timestamp()) * 1000)::bigint AS left_ms
    FROM held
    WHERE owner IS NOT NULL AND lease_until > clock_timestamp()
    ORDER BY lease_until DESC
    LIMIT 1
)
, begun AS (
    INSERT INTO partition_change (from_count, to_count, replicas, max_bytes, max_message_bytes)
    SELECT partitions, $1, $2, $3, $4
    FROM installation
    WHERE partitions <> $1 AND NOT EXISTS (SELECT FROM live)
    ON CONFLICT (single) DO NOTHING
    RETURNING single
)
, taken AS (
    UPDATE partitions AS p
    -- Owners can no longer write earlier decisions, and workers find no free partition.
    SET epoch = antiphon_next_epoch(p.epoch), owner = $5, lease_until = clock_timestamp() + interval '100 years',
        updated_at = clock_timestamp()
    FROM held CROSS JOIN begun
    WHERE p.partition_id = held.partition_id
)
SELECT live.partition_id, live.owner, live.left_ms, EXISTS (SELECT FROM begun) AS has_begun
FROM (SELECT 1) AS one LEFT JOIN live ON true
