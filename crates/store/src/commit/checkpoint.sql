-- The checkpoint is written together with the rows above, or not at all.
UPDATE partitions AS p
SET commits = p.commits + 1,
    checkpoint = f.checkpoint,
    position_ms = f.position_ms,
    read_seq = f.read_seq,
    read_at_ns = f.read_at_ns,
    updated_at = clock_timestamp()
FROM fence AS f
WHERE p.partition_id = f.partition_id
RETURNING f.number, false AS is_stale
