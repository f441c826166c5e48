-- $1 bucket, $2 thread, $3 message, $4 user or '', $5 score, $6 label, $7 comment, $8 limit of
-- users. Returns one row: whether the message is known, and what was stored.
WITH known AS MATERIALIZED (
    -- Locks the thread against an erasure. The ledger knows which agent has answered.
    SELECT coalesce(
               (SELECT u.agent_id FROM usage AS u
                WHERE u.bucket = $1 AND u.thread_id = $2 AND u.message_id = $3 LIMIT 1),
               t.agent_id, t.thread_id) AS agent_id
    FROM threads AS t
    WHERE t.bucket = $1 AND t.thread_id = $2
      AND EXISTS (SELECT FROM messages AS m
                  WHERE m.bucket = t.bucket AND m.thread_id = t.thread_id AND m.message_id = $3)
    FOR KEY SHARE OF t
)
, put AS (
    INSERT INTO feedback AS f (bucket, thread_id, message_id, user_id, tenant, agent_id, score, label, comment)
    SELECT $1, $2, $3, $4, antiphon_tenant_of($2), k.agent_id, $5, $6, $7
    FROM known AS k
    WHERE (SELECT count(*) FROM feedback AS o WHERE o.bucket = $1 AND o.thread_id = $2 AND o.message_id = $3) < $8
       OR EXISTS (SELECT FROM feedback AS o
                  WHERE o.bucket = $1 AND o.thread_id = $2 AND o.message_id = $3 AND o.user_id = $4)
    ON CONFLICT (bucket, thread_id, message_id, user_id) DO UPDATE
    SET score = excluded.score, label = excluded.label, comment = excluded.comment, updated_at = clock_timestamp()
    RETURNING f.*, f.xmax = 0 AS is_new
)
SELECT EXISTS (SELECT FROM known) AS is_known, f.is_new, f.thread_id, f.message_id, f.user_id, f.agent_id, f.score, f.label,
       f.comment, (extract(epoch FROM f.created_at) * 1000)::bigint AS created_ms,
       (extract(epoch FROM f.updated_at) * 1000000)::bigint AS updated_us
FROM (SELECT) AS one
LEFT JOIN put AS f ON true
