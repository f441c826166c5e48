-- $1 bucket, $2 session, $3 the newest layer of the page, $4 how many of its originals were on
-- earlier pages, $5 maximum number of layers, $6 maximum number of originals, $7 shown characters
-- of a text, $8 of a summary. Returns layer $3 and older ones, newest first, each with its
-- originals on this page, in order.
WITH chosen AS (
    SELECT l.*, cardinality(l.replaced) AS size, CASE WHEN l.layer_id = $3 THEN least($4, cardinality(l.replaced)) ELSE 0 END AS skipped
    FROM reasoning_layers AS l
    WHERE l.bucket = $1 AND l.session_id = $2 AND l.layer_id <= $3
    ORDER BY l.layer_id DESC LIMIT $5
)
, page AS (
    SELECT c.*, (sum(c.size - c.skipped) OVER (ORDER BY c.layer_id DESC) - (c.size - c.skipped))::bigint AS before FROM chosen AS c
)
SELECT p.layer_id, p.previous_id, p.actor, p.undone_by, p.undone_at IS NOT NULL AS is_undone, p.summary_number, p.size::bigint AS size,
       p.skipped::bigint AS skipped,
       (extract(epoch FROM p.created_at) * 1000)::bigint AS created_ms,
       (extract(epoch FROM p.undone_at) * 1000)::bigint AS undone_ms,
       left(m.content, $8) AS summary, m.chars AS summary_chars, coalesce(o.originals, '[]') AS originals
FROM page AS p
JOIN reasoning_messages AS m ON m.bucket = p.bucket AND m.session_id = p.session_id AND m.number = p.summary_number
CROSS JOIN LATERAL (
    SELECT jsonb_agg(jsonb_build_object('number', r.number, 'in_temp', r.in_temp, 'role', r.role, 'content', r.text, 'chars', r.chars,
                                        'thinking', r.thought, 'calls', r.calls, 'answers', r.answers, 'tool', r.tool)
                     ORDER BY n.place) AS originals
    FROM unnest(p.replaced[p.skipped + 1:(p.skipped + $6 - p.before)::integer]) WITH ORDINALITY AS n (number, place)
    -- One look-up for each number: a join may compare every number with every message.
    CROSS JOIN LATERAL (
        SELECT l.*, left(l.content, $7) AS text,
               CASE WHEN length(l.thinking) > $7 THEN left(l.thinking, $7) || '…' ELSE l.thinking END AS thought
        FROM reasoning_messages AS l
        WHERE l.bucket = $1 AND l.session_id = $2 AND l.number = n.number
        OFFSET 0
    ) AS r
) AS o
WHERE p.before < $6
ORDER BY p.layer_id DESC
