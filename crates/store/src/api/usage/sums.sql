-- $1 from and $2 before, ms since 1970, $3 limit; prices per million tokens: $4 model, $5 from, as
-- text (NULL: always), $6 input, $7 cached input, $8 output; $9 only this tenant ('-': the default
-- tenant) or NULL. A sum that exceeds bigint is returned as the maximum of bigint. The groups are
-- seven columns; columns that were not requested are NULL.
WITH prices AS (
    SELECT p.model, coalesce(p.starts, '-infinity'::timestamptz) AS starts, p.input, p.cached, p.output,
           lead(p.starts, 1, 'infinity'::timestamptz) OVER (PARTITION BY p.model ORDER BY p.starts NULLS FIRST) AS ends
    FROM unnest($4::text[], $5::text[]::timestamptz[], $6::text[]::numeric[], $7::text[]::numeric[], $8::text[]::numeric[])
         AS p (model, starts, input, cached, output)
)
, used AS (
    SELECT created_at, bucket, thread_id, agent_id, kind, model, finish_reason, 1::bigint AS calls, is_partial::integer::bigint AS partial_calls,
           is_estimated::integer::bigint AS estimated_calls,
           input_tokens, output_tokens, coalesce(cached_tokens, 0) AS cached_tokens,
           least(coalesce(cached_tokens, 0), input_tokens) AS cached_input_tokens, coalesce(reasoning_tokens, 0) AS reasoning_tokens
    FROM usage
    WHERE created_at >= 'epoch'::timestamptz + $1 * interval '1 ms' AND created_at < 'epoch'::timestamptz + $2 * interval '1 ms'
      AND ($9::text IS NULL OR antiphon_tenant_of(thread_id) = $9)
    UNION ALL
    -- All calls of a day count as made at the start of the day.
    SELECT day_at, NULL, NULL, agent_id, kind, model, finish_reason, calls, partial_calls, estimated_calls, input_tokens, output_tokens, cached_tokens,
           cached_input_tokens, reasoning_tokens
    FROM usage_days
    WHERE day_at >= 'epoch'::timestamptz + $1 * interval '1 ms' AND day_at < 'epoch'::timestamptz + $2 * interval '1 ms'
      AND ($9::text IS NULL OR tenant = $9)
)
SELECT {groups},
       sum(u.calls)::bigint AS calls,
       sum(u.partial_calls)::bigint AS partial_calls,
       sum(u.estimated_calls)::bigint AS estimated_calls,
       least(sum(u.input_tokens), 9223372036854775807)::bigint AS input_tokens,
       least(sum(u.output_tokens), 9223372036854775807)::bigint AS output_tokens,
       least(sum(u.cached_tokens), 9223372036854775807)::bigint AS cached_tokens,
       least(sum(u.reasoning_tokens), 9223372036854775807)::bigint AS reasoning_tokens,
       coalesce(sum(u.calls) FILTER (WHERE p.model IS NULL), 0)::bigint AS unpriced_calls,
       trim_scale(sum(u.input_tokens * p.input + u.output_tokens * p.output
                      - u.cached_input_tokens * (p.input - p.cached)) / 1000000)::text AS cost
FROM used AS u
LEFT JOIN prices AS p ON p.model = u.model AND u.created_at >= p.starts AND u.created_at < p.ends
LEFT JOIN threads AS t ON t.bucket = u.bucket AND t.thread_id = u.thread_id
GROUP BY 1, 2, 3, 4, 5, 6, 7
ORDER BY 1, 2, 3, 4, 5, 6, 7
LIMIT $3
