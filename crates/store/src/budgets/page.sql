-- $6 tenant, $7 name (NULL: all), $8 only names after this one, $9 limit.
WITH counted AS MATERIALIZED (
    SELECT b.*, b.period_end AS counts_before
    FROM budgets AS b
    WHERE b.tenant = $6 AND ($7::text IS NULL OR b.name = $7) AND b.name > $8
    ORDER BY b.name
    LIMIT $9
)
{sums}
SELECT 1::bigint AS place, c.*, {columns}
FROM summed AS s
JOIN budgets AS c ON c.tenant = s.tenant AND c.name = s.name
ORDER BY c.name
