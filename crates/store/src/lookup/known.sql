-- Arrays: $1 bucket, $2 thread, $3 message; $4 partition and $5 epoch of the asking owner, or NULL.
-- Returns one row for each message, in their order.
--
-- OFFSET 0: without it the planner may answer an EXISTS by hashing the whole table once per
-- statement. That looks cheap while the table is small, and a generic plan still does it when the
-- table has grown.
SELECT EXISTS (SELECT FROM messages AS m
               WHERE m.bucket = k.bucket AND m.thread_id = k.thread_id AND m.message_id = k.message_id
               OFFSET 0)
       OR EXISTS (SELECT FROM dead_letters AS d
                  WHERE d.bucket = k.bucket AND d.kind = 'message' AND d.key = k.thread_id || '/' || k.message_id
                  OFFSET 0)
       OR EXISTS (SELECT FROM expired_messages AS r
                  WHERE r.bucket = k.bucket AND r.message_id = k.message_id AND r.thread_id = k.thread_id
                  OFFSET 0)
       AS ended,
       CASE WHEN EXISTS (SELECT FROM erased_threads AS e
                         WHERE e.bucket = k.bucket AND e.thread_id = k.thread_id AND e.recreated_at IS NULL
                         OFFSET 0)
                 OR EXISTS (SELECT FROM erased_tenants AS z WHERE z.tenant = antiphon_tenant_of(k.thread_id) OFFSET 0)
                THEN 'erased'
            WHEN EXISTS (SELECT FROM threads AS t WHERE t.bucket = k.bucket AND t.thread_id = k.thread_id OFFSET 0)
                THEN 'there'
            ELSE 'absent' END AS thread,
       $4::smallint IS NULL
       OR EXISTS (SELECT FROM partitions AS p WHERE p.partition_id = $4 AND p.epoch = $5::bigint AND p.owner IS NOT NULL) AS is_owner
FROM unnest($1::smallint[], $2::text[], $3::text[])
     WITH ORDINALITY AS k (bucket, thread_id, message_id, number)
ORDER BY k.number
