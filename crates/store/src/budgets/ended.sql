-- Budgets whose period is over, at most $1.
SELECT b.tenant, b.name, b.version, b.period, b.time_zone,
       floor(extract(epoch FROM b.period_end) * 1000)::bigint AS ends_ms, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
FROM budgets AS b
WHERE b.period_end <= now()
LIMIT $1
