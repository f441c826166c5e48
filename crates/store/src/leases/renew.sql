-- $1 worker, $2 ttl, arrays: $3 partition, $4 epoch, $5 commits, $6 saves.
WITH held AS MATERIALIZED (
    -- Locks the rows in the order in which commits lock them; an UPDATE alone would lock them in
    -- any order.
    SELECT p.partition_id
    FROM unnest($3::smallint[], $4::bigint[], $5::bigint[], $6::bigint[]) AS h (partition_id, epoch, commits, saves)
    -- More commits or saves may have been applied since the caller asked. Fewer mean that the store
    -- went back in time.
    JOIN partitions AS p ON p.partition_id = h.partition_id AND p.epoch = h.epoch AND p.commits >= h.commits
    LEFT JOIN partition_saves AS s ON s.partition_id = h.partition_id
    WHERE p.owner = $1 AND h.saves <= coalesce(s.saves, 0)
    ORDER BY p.partition_id
    FOR NO KEY UPDATE OF p
)
UPDATE partitions AS p
SET lease_until = clock_timestamp() + $2, updated_at = clock_timestamp()
FROM held
WHERE p.partition_id = held.partition_id
RETURNING p.partition_id,
          (SELECT count(*) FROM incidents AS i WHERE i.partition_id = p.partition_id AND i.acknowledged_at IS NULL) AS incidents
