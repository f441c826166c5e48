-- $1 partition. One row per saved chunk; a straggler without chunks has one row all the same.
SELECT s.thread_id, s.message_id, s.attempt, s.role, s.first_seq,
       s.open_ms + age.ms AS open_ms, s.gap_ms + age.ms AS gap_ms, s.idle_ms + age.ms AS idle_ms,
       c.chunk_id, c.chunk, c.chunk_type, c.is_final, c.metadata, c."timestamp", c.correlation_id
FROM stragglers AS s
-- Ages go on while nobody owns the partition.
CROSS JOIN LATERAL (
    SELECT greatest(0, extract(epoch FROM clock_timestamp() - s.saved_at) * 1000)::bigint AS ms
) AS age
LEFT JOIN straggler_chunks AS c
    ON c.bucket = s.bucket AND c.thread_id = s.thread_id AND c.message_id = s.message_id AND c.attempt = s.attempt
-- All stragglers of the fleet are read for this. They are few: what ends, ends their rows.
WHERE s.bucket % (SELECT partitions FROM fleet) = $1
  AND NOT EXISTS (SELECT FROM erased_threads AS e
                  WHERE e.bucket = s.bucket AND e.thread_id = s.thread_id AND e.named_at IS NULL
                  OFFSET 0)
ORDER BY s.bucket, s.thread_id, s.message_id, c.arrival
