-- Continues after a CTE `counted`: rows of `budgets` whose calls from `counted_to` and before
-- `counts_before` are summed. Prices per million tokens: $1 model, $2 from, as text (NULL: always),
-- $3 input, $4 cached input, $5 output.
--
-- Calls are read once and summed once per scope, however many budgets a scope has. Calls of a
-- tenant without such a budget are not summed.
, prices AS (
    SELECT p.model, coalesce(p.starts, '-infinity'::timestamptz) AS starts, p.input, p.cached, p.output,
           lead(p.starts, 1, 'infinity'::timestamptz) OVER (PARTITION BY p.model ORDER BY p.starts NULLS FIRST) AS ends
    FROM unnest($1::text[], $2::text[]::timestamptz[], $3::text[]::numeric[], $4::text[]::numeric[], $5::text[]::numeric[])
         AS p (model, starts, input, cached, output)
)
, tenants AS MATERIALIZED (
    SELECT c.tenant, min(c.counted_to) AS since, max(c.counts_before) AS before,
           bool_or(c.unit = 'cost') AS has_costs, bool_or(starts_with(c.scope, 'user:')) AS has_users,
           -- An object, not rows: sessions of the store use only nested loop joins, and there may
           -- be a thousand scopes.
           jsonb_object_agg(c.scope, true) AS scopes
    FROM counted AS c
    GROUP BY c.tenant
)
-- One row per call and scope with a budget. Numeric: a sum of bigint may overflow, and the error
-- would fail all budgets of the statement.
, recent AS (
    SELECT t.tenant, v.scope, u.created_at AS at, u.input_tokens::numeric + u.output_tokens AS tokens,
           CASE WHEN t.has_costs AND p.model IS NULL THEN 1 ELSE 0 END AS unpriced_calls,
           u.input_tokens * p.input + u.output_tokens * p.output
               - least(coalesce(u.cached_tokens, 0), u.input_tokens) * (p.input - p.cached) AS millionths
    FROM usage AS u
    JOIN tenants AS t ON t.tenant = antiphon_tenant_of(u.thread_id) AND u.created_at >= t.since AND u.created_at < t.before
    -- Prices are looked up only for budgets on cost, and threads only for budgets of users.
    LEFT JOIN prices AS p ON t.has_costs AND p.model = u.model AND u.created_at >= p.starts AND u.created_at < p.ends
    CROSS JOIN LATERAL unnest(ARRAY[
        'tenant',
        -- Work after an agent's turns runs in separate queues and counts for the agent.
        'agent:' || split_part(u.agent_id, '+', 1),
        CASE WHEN t.has_users
             THEN 'user:' || (SELECT h.metadata ->> 'user_id' FROM threads AS h WHERE h.bucket = u.bucket AND h.thread_id = u.thread_id) END
    ]) AS v (scope)
    -- This condition is for the index, which has no tenant column.
    WHERE u.created_at >= (SELECT min(since) FROM tenants) AND u.created_at < (SELECT max(before) FROM tenants)
      AND t.scopes ? v.scope
)
-- The calls of each scope, and among them the start (1) and the end (-1) of each budget of the
-- scope. Budget rows carry all their columns, because a join of two CTEs may compare each row with
-- each.
, placed AS (
    SELECT r.tenant, r.scope, r.at, r.tokens, r.millionths, r.unpriced_calls, 0 AS sign, NULL AS name, NULL AS unit, NULL::bigint AS version,
           NULL::timestamptz AS counted_to, NULL::timestamptz AS counts_before, NULL::timestamptz AS period_end, NULL::numeric AS amount_left
    FROM recent AS r
    UNION ALL
    SELECT c.tenant, c.scope, e.at, 0, 0, 0, e.sign, c.name, c.unit, c.version, c.counted_to, c.counts_before, c.period_end,
           c.max_amount - c.spent
    FROM counted AS c
    CROSS JOIN LATERAL (VALUES (c.counted_to, 1), (c.counts_before, -1)) AS e (at, sign)
)
-- Each row gets the usage since its time; rows with the same time count together.
, running AS (
    SELECT p.*, sum(p.tokens) OVER w AS tokens_since, sum(p.millionths) OVER w AS millionths_since,
           sum(p.unpriced_calls) OVER w AS unpriced_since
    FROM placed AS p
    WINDOW w AS (PARTITION BY p.tenant, p.scope ORDER BY p.at DESC)
)
-- One row for each budget of `counted`.
, summed AS MATERIALIZED (
    SELECT r.tenant, r.name, r.scope, r.version, r.counted_to, r.counts_before, r.period_end, r.amount_left,
           CASE r.unit WHEN 'tokens' THEN sum(r.sign * r.tokens_since) ELSE sum(r.sign * r.millionths_since) / 1000000 END AS amount,
           CASE r.unit WHEN 'tokens' THEN 0 ELSE sum(r.sign * r.unpriced_since) END AS unpriced_calls
    FROM running AS r
    WHERE r.sign <> 0
    GROUP BY r.tenant, r.name, r.scope, r.unit, r.version, r.counted_to, r.counts_before, r.period_end, r.amount_left
)
