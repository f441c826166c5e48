-- Goes on after a CTE `counted`: budgets (tenant, name, scope, unit) whose calls from `counted_to` and before `counts_before` are summed.
-- Prices: $1 model, $2 from, as text (NULL: always), $3 input, $4 cached input, $5 output, each for a million tokens.
, prices AS (
    SELECT p.model, coalesce(p.starts, '-infinity'::timestamptz) AS starts, p.input, p.cached, p.output,
           lead(p.starts, 1, 'infinity'::timestamptz) OVER (PARTITION BY p.model ORDER BY p.starts NULLS FIRST) AS ends
    FROM unnest($1::text[], $2::text[]::timestamptz[], $3::text[]::numeric[], $4::text[]::numeric[], $5::text[]::numeric[])
         AS p (model, starts, input, cached, output)
)
-- MATERIALIZED: read once, however many budgets there are. A row for each scope that a call counts in.
, recent AS MATERIALIZED (
    SELECT u.created_at, antiphon_tenant_of(u.thread_id) AS tenant, v.scope, u.input_tokens + u.output_tokens AS tokens,
           p.model IS NULL AS is_unpriced,
           u.input_tokens * p.input + u.output_tokens * p.output
               - least(coalesce(u.cached_tokens, 0), u.input_tokens) * (p.input - p.cached) AS millionths
    FROM usage AS u
    -- No price is looked up where no budget is a cost, and no thread where none is a user's.
    LEFT JOIN prices AS p ON (SELECT bool_or(unit = 'cost') FROM counted) AND p.model = u.model AND u.created_at >= p.starts AND u.created_at < p.ends
    CROSS JOIN LATERAL unnest(ARRAY[
        'tenant',
        -- The work that follows an agent's turns, in queues of its own, is the agent's.
        'agent:' || split_part(u.agent_id, '+', 1),
        CASE WHEN (SELECT bool_or(starts_with(scope, 'user:')) FROM counted)
             THEN 'user:' || (SELECT t.metadata ->> 'user_id' FROM threads AS t WHERE t.bucket = u.bucket AND t.thread_id = u.thread_id) END
    ]) AS v (scope)
    WHERE u.created_at >= (SELECT min(counted_to) FROM counted) AND u.created_at < (SELECT max(counts_before) FROM counted)
)
, summed AS MATERIALIZED (
    SELECT c.tenant, c.name, CASE c.unit WHEN 'tokens' THEN sum(r.tokens) ELSE sum(r.millionths) / 1000000 END AS amount,
           count(*) FILTER (WHERE c.unit = 'cost' AND r.is_unpriced) AS unpriced_calls
    FROM recent AS r
    JOIN counted AS c ON c.tenant = r.tenant AND c.scope = r.scope AND r.created_at >= c.counted_to AND r.created_at < c.counts_before
    GROUP BY c.tenant, c.name, c.unit
)
