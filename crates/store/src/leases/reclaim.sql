-- $1 worker, $2 ttl, $3 partition; the worker's knowledge of the partition: $4 epoch, $5 commits,
-- $6 checkpoint, $7 position_ms; $8 the actor that acknowledges incidents without a loss; $9 the
-- highest known epoch, at least $4; $10 saves that the worker knows of.
WITH found AS MATERIALIZED (
    -- Finds the caller's lease, or a lower epoch. A lower epoch means that the store went back to
    -- before the grant, and that no worker was granted the partition since. Waits for a doubtful
    -- commit, which holds the lock while it runs.
    SELECT p.*, coalesce(s.saves, 0) AS saves, p.epoch < $9 OR p.commits < $5 OR coalesce(s.saves, 0) < $10 AS stepped_back
    FROM partitions AS p
    LEFT JOIN partition_saves AS s USING (partition_id)
    WHERE p.partition_id = $3 AND ((p.epoch = $4 AND p.owner = $1) OR p.epoch < $4)
    FOR UPDATE OF p
)
, noted AS (
    INSERT INTO incidents AS i (partition_id, incarnation, first_seq, kind, last_seq, detail, acknowledged_at, acknowledged_by)
    SELECT f.partition_id, coalesce(f.incarnation, ''), f.checkpoint + 1, 'store_stepped_back',
           -- If another owner held a later epoch, the last entry that it read is unknown.
           CASE WHEN $9 = $4 THEN greatest($6, f.checkpoint) END,
           format('Postgres went back to commit %s and save %s of epoch %s, while commit %s, save %s and epoch %s were known: the stream is read again from %s on',
                  f.commits, f.saves, f.epoch, $5, $10, $9, f.checkpoint + 1),
           clock_timestamp(), $8
    FROM found AS f
    WHERE f.stepped_back
    ON CONFLICT (partition_id, incarnation, first_seq, kind) DO UPDATE
    SET last_seq = CASE WHEN i.last_seq IS NOT NULL THEN excluded.last_seq END, detail = excluded.detail, detected_at = excluded.detected_at
)
UPDATE partitions AS p
SET epoch = antiphon_next_epoch(greatest(f.epoch, $9)), owner = $1, lease_until = clock_timestamp() + $2,
    -- Positions that the worker has assigned since then must not be assigned again.
    position_ms = greatest(f.position_ms, $7, (extract(epoch FROM clock_timestamp()) * 1000)::bigint),
    updated_at = clock_timestamp()
FROM found AS f
WHERE p.partition_id = f.partition_id
RETURNING p.partition_id, p.epoch, p.commits, p.checkpoint, p.incarnation, p.position_ms, p.read_seq, p.read_at_ns,
          (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS granted_at_ms, f.stepped_back
