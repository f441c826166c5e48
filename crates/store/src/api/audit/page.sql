-- $1 bucket, $2 subject, $3 before this act or NULL, $4 limit. Acts of one moment are told apart by their ids.
SELECT a.*, (extract(epoch FROM a.at) * 1000)::bigint AS at_ms
FROM audit AS a
WHERE a.bucket = $1 AND a.subject_id = $2
  AND ($3::text IS NULL
       OR (a.at, a.act_id) < (SELECT b.at, b.act_id FROM audit AS b
                              WHERE b.bucket = $1 AND b.subject_id = $2 AND b.act_id = $3))
ORDER BY a.at DESC, a.act_id DESC
LIMIT $4
