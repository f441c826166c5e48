-- $1 age, $2 maximum number of calls. This one statement moves calls from `usage` into the sums of
-- `usage_days`, so that a call is always in exactly one of them.
WITH old AS MATERIALIZED (
    -- Moves whole days only. So if a query begins or ends within a day, either all calls of that
    -- day are kept in detail or none is. now(), not clock_timestamp(): an index scan needs a stable
    -- time. SKIP LOCKED: a row that is being erased is not summed, and several workers share the
    -- work.
    SELECT ctid AS place
    FROM usage
    WHERE created_at < date_trunc('day', now() - $1, 'UTC')
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
, gone AS (
    DELETE FROM usage AS u USING old AS o WHERE u.ctid = o.place RETURNING u.*
)
, summed AS (
    INSERT INTO usage_days AS d (day_at, tenant, agent_id, kind, model, finish_reason, calls, partial_calls, estimated_calls, input_tokens, output_tokens,
                                 cached_tokens, cached_input_tokens, reasoning_tokens)
    SELECT date_trunc('day', created_at, 'UTC'), antiphon_tenant_of(thread_id), agent_id, kind, model, finish_reason, count(*),
           count(*) FILTER (WHERE is_partial), count(*) FILTER (WHERE is_estimated),
           -- A sum that exceeds bigint is stored as the maximum of bigint. An error would recur in
           -- each round, and the calls would never be moved.
           least(sum(input_tokens), 9223372036854775807), least(sum(output_tokens), 9223372036854775807),
           least(coalesce(sum(cached_tokens), 0), 9223372036854775807),
           least(sum(least(coalesce(cached_tokens, 0), input_tokens)), 9223372036854775807),
           least(coalesce(sum(reasoning_tokens), 0), 9223372036854775807)
    FROM gone
    GROUP BY 1, 2, 3, 4, 5, 6
    -- A fixed order, so that two workers cannot deadlock.
    ORDER BY 1, 2, 3, 4, 5, 6
    ON CONFLICT (day_at, tenant, agent_id, kind, model, finish_reason) DO UPDATE
    SET calls = d.calls + excluded.calls,
        partial_calls = d.partial_calls + excluded.partial_calls,
        estimated_calls = d.estimated_calls + excluded.estimated_calls,
        input_tokens = least(d.input_tokens::numeric + excluded.input_tokens, 9223372036854775807),
        output_tokens = least(d.output_tokens::numeric + excluded.output_tokens, 9223372036854775807),
        cached_tokens = least(d.cached_tokens::numeric + excluded.cached_tokens, 9223372036854775807),
        cached_input_tokens = least(d.cached_input_tokens::numeric + excluded.cached_input_tokens, 9223372036854775807),
        reasoning_tokens = least(d.reasoning_tokens::numeric + excluded.reasoning_tokens, 9223372036854775807)
)
SELECT count(*) AS count FROM gone
