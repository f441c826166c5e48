-- Arrays: $1 bucket, $2 thread, $3 message. One row each, in their order.
--
-- OFFSET 0: without it the planner may answer an EXISTS by hashing the whole table once per statement, which looks cheap
-- while the table is small, and a generic plan keeps it when it is not.
SELECT EXISTS (SELECT FROM messages AS m
               WHERE m.bucket = k.bucket AND m.thread_id = k.thread_id AND m.message_id = k.message_id
               OFFSET 0)
       OR EXISTS (SELECT FROM dead_letters AS d
                  WHERE d.bucket = k.bucket AND d.kind = 'message' AND d.key = k.thread_id || '/' || k.message_id
                  OFFSET 0)
       AS ended,
       -- Whether it was erased is asked only of a thread that does not exist.
       CASE WHEN EXISTS (SELECT FROM threads AS t WHERE t.bucket = k.bucket AND t.thread_id = k.thread_id OFFSET 0)
                THEN 'there'
            WHEN EXISTS (SELECT FROM erased_threads AS e
                         WHERE e.bucket = k.bucket AND e.thread_id = k.thread_id
                         OFFSET 0)
                THEN 'erased'
            ELSE 'absent' END AS thread
FROM unnest($1::smallint[], $2::text[], $3::text[])
     WITH ORDINALITY AS k (bucket, thread_id, message_id, number)
ORDER BY k.number
