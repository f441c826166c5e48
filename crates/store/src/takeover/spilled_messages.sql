-- $1 partition. The parts of the highest attempt of each message come first, in the order of their
-- chunks.
SELECT s.thread_id, s.message_id, s.attempt, s.role, s.first_seq,
       s.open_ms + age.ms AS open_ms, s.gap_ms + age.ms AS gap_ms, s.idle_ms + age.ms AS idle_ms,
       s.earlier_calls::text, s.chunks
FROM spilled_messages AS s
-- Ages continue to grow while the partition has no owner.
CROSS JOIN LATERAL (
    SELECT greatest(0, extract(epoch FROM clock_timestamp() - s.saved_at) * 1000)::bigint AS ms
) AS age
-- This reads all saved messages of the installation. They are few: the end of a message deletes its
-- rows.
WHERE s.bucket % (SELECT partitions FROM installation) = $1
  AND NOT EXISTS (SELECT FROM erased_threads AS e
                  WHERE e.bucket = s.bucket AND e.thread_id = s.thread_id AND e.recreated_at IS NULL
                  OFFSET 0)
  AND NOT EXISTS (SELECT FROM erased_tenants AS z WHERE z.tenant = antiphon_tenant_of(s.thread_id) OFFSET 0)
ORDER BY s.bucket, s.thread_id, s.message_id, s.attempt DESC, s.first_chunk
