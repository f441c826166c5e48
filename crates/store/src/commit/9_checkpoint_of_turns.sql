-- Together with the rows, or not at all. GREATEST: a commit that is applied a second time takes nothing back.
UPDATE partitions AS p
SET checkpoint = greatest(p.checkpoint, f.checkpoint),
    position_ms = greatest(p.position_ms, f.position_ms),
    updated_at = clock_timestamp()
FROM fence AS f
WHERE p.partition_id = f.partition_id
-- Stale: a queue was further than its owner thought.
RETURNING f.number,
          EXISTS (SELECT FROM wanted AS w
                  WHERE w.number = f.number AND w.item NOT IN (SELECT item FROM won)) AS is_stale
