-- $1 maximum number, $2 tenants (NULL: all). Returns budgets whose period has ended.
SELECT b.tenant, b.name, b.version, b.period, b.time_zone,
       floor(extract(epoch FROM b.period_end) * 1000)::bigint AS ends_ms, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
FROM budgets AS b
WHERE b.period_end <= now() AND ($2::text[] IS NULL OR b.tenant = ANY ($2))
LIMIT $1
