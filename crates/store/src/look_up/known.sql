-- Arrays: $1 bucket, $2 thread, $3 message. One row each, in their order.
SELECT EXISTS (SELECT FROM messages AS m
               WHERE m.bucket = k.bucket AND m.thread_id = k.thread_id AND m.message_id = k.message_id)
       OR EXISTS (SELECT FROM dead_letters AS d
                  WHERE d.bucket = k.bucket AND d.kind = 'message' AND d.key = k.thread_id || '/' || k.message_id)
       AS ended,
       EXISTS (SELECT FROM threads AS t WHERE t.bucket = k.bucket AND t.thread_id = k.thread_id) AS thread
FROM unnest($1::smallint[], $2::text[], $3::text[])
     WITH ORDINALITY AS k (bucket, thread_id, message_id, number)
ORDER BY k.number
