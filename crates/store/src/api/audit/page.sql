-- $1 bucket, $2 subject, $3 before this command or NULL, $4 limit. Commands with the same time are
-- ordered by id.
SELECT a.*, (extract(epoch FROM a.created_at) * 1000)::bigint AS created_ms
FROM audit_log AS a
WHERE a.bucket = $1 AND a.subject_id = $2
  AND ($3::text IS NULL
       OR (a.created_at, a.command_id) < (SELECT b.created_at, b.command_id FROM audit_log AS b
                                            WHERE b.bucket = $1 AND b.subject_id = $2 AND b.command_id = $3))
ORDER BY a.created_at DESC, a.command_id DESC
LIMIT $4
