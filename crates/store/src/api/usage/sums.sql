-- $1 from and $2 before, ms since 1970, $3 limit; prices: $4 model, $5 from, as text (NULL: always), $6 input, $7 cached input, $8 output, each
-- for a million tokens. The groups are six columns, those that are not asked for NULL.
WITH prices AS (
    SELECT p.model, coalesce(p.starts, '-infinity'::timestamptz) AS starts, p.input, p.cached, p.output,
           lead(p.starts, 1, 'infinity'::timestamptz) OVER (PARTITION BY p.model ORDER BY p.starts NULLS FIRST) AS ends
    FROM unnest($4::text[], $5::text[]::timestamptz[], $6::text[]::numeric[], $7::text[]::numeric[], $8::text[]::numeric[])
         AS p (model, starts, input, cached, output)
)
SELECT {groups},
       count(*) AS calls,
       count(*) FILTER (WHERE u.is_partial) AS partial_calls,
       sum(u.input_tokens)::bigint AS input_tokens,
       sum(u.output_tokens)::bigint AS output_tokens,
       coalesce(sum(u.cached_tokens), 0)::bigint AS cached_tokens,
       coalesce(sum(u.reasoning_tokens), 0)::bigint AS reasoning_tokens,
       count(*) FILTER (WHERE p.model IS NULL) AS unpriced_calls,
       trim_scale(sum(u.input_tokens * p.input + u.output_tokens * p.output
                      - least(coalesce(u.cached_tokens, 0), u.input_tokens) * (p.input - p.cached)) / 1000000)::text AS cost
FROM usage AS u
LEFT JOIN prices AS p ON p.model = u.model AND u.created_at >= p.starts AND u.created_at < p.ends
LEFT JOIN threads AS t ON t.bucket = u.bucket AND t.thread_id = u.thread_id
WHERE u.created_at >= 'epoch'::timestamptz + $1 * interval '1 ms' AND u.created_at < 'epoch'::timestamptz + $2 * interval '1 ms'
GROUP BY 1, 2, 3, 4, 5, 6
ORDER BY 1, 2, 3, 4, 5, 6
LIMIT $3
