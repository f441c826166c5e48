-- $1 bucket, $2 session, $3 before this layer, $4 the most layers, $5 about so many characters. The newest first, each with what it replaced,
-- in order.
WITH page AS (
    SELECT l.*, sum(l.chars) OVER (ORDER BY l.layer_id DESC) - l.chars AS before
    FROM (
        SELECT * FROM reasoning_layers WHERE bucket = $1 AND session_id = $2 AND layer_id < $3
        ORDER BY layer_id DESC LIMIT $4
    ) AS l
)
SELECT p.layer_id, p.previous_id, p.actor, p.undone_by, p.undone_at IS NOT NULL AS is_undone, p.replaced, p.summary_number,
       (extract(epoch FROM p.created_at) * 1000)::bigint AS created_ms,
       (extract(epoch FROM p.undone_at) * 1000)::bigint AS undone_ms,
       m.content AS summary, o.originals
FROM page AS p
JOIN reasoning_messages AS m ON m.bucket = p.bucket AND m.session_id = p.session_id AND m.number = p.summary_number
CROSS JOIN LATERAL (
    SELECT jsonb_agg(jsonb_build_object('number', r.number, 'in_temp', r.in_temp, 'role', r.role, 'content', r.content,
                                        'thinking', r.thinking, 'calls', r.calls, 'answers', r.answers, 'tool', r.tool)
                     ORDER BY n.place) AS originals
    FROM unnest(p.replaced) WITH ORDINALITY AS n (number, place)
    JOIN reasoning_messages AS r ON r.bucket = p.bucket AND r.session_id = p.session_id AND r.number = n.number
) AS o
WHERE p.before < $5
ORDER BY p.layer_id DESC
