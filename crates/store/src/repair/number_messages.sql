-- $1 how many; $2 bucket and $3 thread (NULL: all threads). Numbers the first unnumbered messages
-- of one thread, in their order. Returns 0 when all messages have numbers. A commit to the thread
-- waits in the meantime.
WITH next AS MATERIALIZED (
    SELECT m.bucket, m.thread_id FROM messages AS m
    JOIN threads AS t ON t.bucket = m.bucket AND t.thread_id = m.thread_id
    WHERE m.number IS NULL AND ($3::text IS NULL OR (m.bucket, m.thread_id) = ($2::smallint, $3::text))
    ORDER BY m.bucket, m.thread_id
    LIMIT 1
)
, thread AS MATERIALIZED (
    SELECT t.bucket, t.thread_id, t.last_number FROM threads AS t
    JOIN next AS n ON n.bucket = t.bucket AND n.thread_id = t.thread_id
    FOR NO KEY UPDATE OF t
)
, part AS MATERIALIZED (
    SELECT m.position, t.last_number + row_number() OVER (ORDER BY m.position) AS number
    FROM thread AS t
    CROSS JOIN LATERAL (
        SELECT m.position FROM messages AS m
        WHERE m.bucket = t.bucket AND m.thread_id = t.thread_id AND m.number IS NULL
        ORDER BY m.position
        LIMIT $1
    ) AS m
)
, numbered AS (
    UPDATE messages AS m SET number = p.number
    FROM part AS p, thread AS t
    WHERE m.bucket = t.bucket AND m.thread_id = t.thread_id AND m.position = p.position AND m.number IS NULL
)
, moved AS (
    UPDATE threads AS t SET last_number = (SELECT max(number) FROM part)
    FROM thread AS o
    WHERE t.bucket = o.bucket AND t.thread_id = o.thread_id AND EXISTS (SELECT FROM part)
)
SELECT count(*) AS count FROM part
