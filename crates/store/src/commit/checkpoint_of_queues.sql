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
-- Stale: a queue was further ahead than its owner assumed.
RETURNING f.number,
          EXISTS (SELECT FROM wanted AS w
                  WHERE w.number = f.number AND w.item NOT IN (SELECT item FROM won)) AS is_stale
