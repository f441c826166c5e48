-- Together with the rows, or not at all. GREATEST: a commit that is applied a second time takes nothing back.
UPDATE partitions AS p
SET checkpoint = greatest(p.checkpoint, f.checkpoint),
    position_ms = greatest(p.position_ms, f.position_ms),
    updated_at = clock_timestamp()
FROM fence AS f
WHERE p.partition_id = f.partition_id
RETURNING f.number, false AS is_stale
