-- $1 bucket, $2 thread, $3 last number of the thread, $4 how many. Returns messages without a
-- number, with a duplicate number, or with a number above the thread's last number.
SELECT o.position, o.batch_id, o.number::bigint AS number, o.twice
FROM (
    SELECT m.position, m.batch_id, m.number, m.number IS NOT NULL AND count(*) OVER (PARTITION BY m.number) > 1 AS twice
    FROM messages AS m
    WHERE m.bucket = $1 AND m.thread_id = $2
) AS o
WHERE o.number IS NULL OR o.twice OR o.number > $3
ORDER BY o.position
LIMIT $4
