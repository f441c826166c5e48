-- $1 bucket and $2 id of the thread before; $3 the limit; $4 what the ids begin with (NULL: those
-- of the default tenant, which have no tenant).
--
-- From bucket to bucket: the threads of a small tenant are found without reading the index of all.
-- Ids are compared byte by byte, and `~` is the last printable character.
SELECT t.bucket, t.thread_id
FROM generate_series($1::smallint, 1023) AS b (bucket)
CROSS JOIN LATERAL (
    SELECT t.bucket, t.thread_id
    FROM threads AS t
    WHERE t.bucket = b.bucket AND NOT t.is_temporary
      AND t.thread_id > CASE WHEN b.bucket = $1 THEN greatest($2 COLLATE "C", coalesce($4, '')) ELSE coalesce($4, '') END
      AND ($4 IS NULL OR t.thread_id < $4 || chr(127))
      AND ($4 IS NOT NULL OR strpos(t.thread_id, '~') = 0)
    ORDER BY t.thread_id
    LIMIT $3
) AS t
ORDER BY t.bucket, t.thread_id
LIMIT $3
