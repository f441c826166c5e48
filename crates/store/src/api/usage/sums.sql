-- $1 from and $2 before, ms since 1970, $3 limit. The groups are six columns, those that are not asked for NULL.
SELECT {groups},
       count(*) AS calls,
       count(*) FILTER (WHERE u.is_partial) AS partial_calls,
       sum(u.input_tokens)::bigint AS input_tokens,
       sum(u.output_tokens)::bigint AS output_tokens,
       coalesce(sum(u.cached_tokens), 0)::bigint AS cached_tokens,
       coalesce(sum(u.reasoning_tokens), 0)::bigint AS reasoning_tokens
FROM usage AS u
LEFT JOIN threads AS t ON t.bucket = u.bucket AND t.thread_id = u.thread_id
WHERE u.created_at >= 'epoch'::timestamptz + $1 * interval '1 ms' AND u.created_at < 'epoch'::timestamptz + $2 * interval '1 ms'
GROUP BY 1, 2, 3, 4, 5, 6
ORDER BY 1, 2, 3, 4, 5, 6
LIMIT $3
