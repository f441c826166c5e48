-- Arrays: $1 bucket, $2 thread, $3 message. A row for each that has ended, in their order.
-- LATERAL with OFFSET 0: one look-up by key for each, whatever the planner thinks of the size of the tables.
SELECT k.thread_id, k.message_id, m.position, m.role, coalesce(steps.content, m.content) AS content, d.reason, d.detail,
       coalesce(m.attempt, d.attempt, 0) AS attempt
FROM unnest($1::smallint[], $2::text[], $3::text[])
     WITH ORDINALITY AS k (bucket, thread_id, message_id, number)
LEFT JOIN LATERAL (
    SELECT m.position, m.role, m.content, m.attempt, m.batch_id, m.sequence_num FROM messages AS m
    WHERE m.bucket = k.bucket AND m.thread_id = k.thread_id AND m.message_id = k.message_id
    OFFSET 0
) AS m ON true
-- Clients were sent the text of all steps of a turn under the id of its answer. The steps stand between the batch's first
-- message and the answer, and bear its id. ORDER BY inside: it makes the primary key the cheapest way, so that this range
-- is read and not the thread.
LEFT JOIN LATERAL (
    SELECT string_agg(s.content, '' ORDER BY s.position) AS content
    FROM (
        SELECT s.position, s.content FROM messages AS s
        WHERE m.sequence_num > 0
          AND s.bucket = k.bucket AND s.thread_id = k.thread_id AND s.position BETWEEN m.batch_id AND m.position
          AND s.role = 'assistant'
          AND (s.position = m.position OR starts_with(s.message_id, k.message_id || '-s'))
        ORDER BY s.position
        OFFSET 0
    ) AS s
) AS steps ON true
LEFT JOIN LATERAL (
    SELECT d.reason, d.detail, d.attempt FROM dead_letters AS d
    WHERE d.bucket = k.bucket AND d.kind = 'message' AND d.key = k.thread_id || '/' || k.message_id
    OFFSET 0
) AS d ON true
WHERE m.position IS NOT NULL OR d.reason IS NOT NULL
ORDER BY k.number
