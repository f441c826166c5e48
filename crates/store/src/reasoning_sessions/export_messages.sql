-- $1 bucket, $2 session, $3 after, $4 up to. octet_length does not read values that are stored out
-- of line.
SELECT to_jsonb(m) - 'bucket' - 'session_id' - 'before' AS row
FROM (
    SELECT r.*, sum(octet_length(r.content)) OVER (ORDER BY r.number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (
        SELECT * FROM reasoning_messages
        WHERE bucket = $1 AND session_id = $2 AND number > $3 AND number <= $4
        ORDER BY number
        LIMIT 1000
    ) AS r
) AS m
WHERE coalesce(m.before, 0) < 4194304
ORDER BY m.number
