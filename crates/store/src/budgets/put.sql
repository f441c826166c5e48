-- $1 tenant, $2 name, $3 scope, $4 unit, $5 limit, $6 period, $7 time zone, $8 start and $9 end of
-- the period, ms, $10 how many a tenant may have, $11 bucket and $12 subject of the audit, $13
-- command, $14 actor. If only the limit changes, the counted usage is kept. Otherwise the usage is
-- counted again, at the current prices.
WITH put AS (
    INSERT INTO budgets AS b (tenant, name, scope, unit, max_amount, period, time_zone, period_start, period_end, counted_to)
    SELECT $1, $2, $3, $4, $5::text::numeric, $6, $7, 'epoch'::timestamptz + $8 * interval '1 ms',
           'epoch'::timestamptz + $9 * interval '1 ms', 'epoch'::timestamptz + $8 * interval '1 ms'
    WHERE (SELECT count(*) FROM budgets WHERE tenant = $1 AND name <> $2) < $10
    ON CONFLICT (tenant, name) DO UPDATE
    SET max_amount = excluded.max_amount, version = b.version + 1, updated_at = clock_timestamp(),
        scope = excluded.scope, unit = excluded.unit, period = excluded.period, time_zone = excluded.time_zone,
        period_start = excluded.period_start, period_end = excluded.period_end,
        (counted_to, spent, unpriced_calls) = (
            SELECT c.counted_to, c.spent, c.unpriced_calls
            FROM (VALUES (true, b.counted_to, b.spent, b.unpriced_calls), (false, excluded.counted_to, 0, 0))
                 AS c (is_same, counted_to, spent, unpriced_calls)
            WHERE c.is_same = ((b.scope, b.unit, b.period, b.time_zone, b.period_end)
                               = (excluded.scope, excluded.unit, excluded.period, excluded.time_zone, excluded.period_end))
        )
    RETURNING version
)
, audited AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, about)
    SELECT $11, $12, $13, $14, 'put_budget', $2, antiphon_audit_about($1, $3) FROM put
    ON CONFLICT (bucket, subject_id, command_id) DO NOTHING
)
SELECT version AS count FROM put
