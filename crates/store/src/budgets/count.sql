-- $6 minimum age of counted rows, $7 how much of the ledger is read at once, $8 tenants (NULL:
-- all), $9 name (NULL: every budget of those tenants). Younger rows may not be visible yet: a row
-- has the time of its statement, which ends later.
WITH due AS MATERIALIZED (
    SELECT b.*, min(b.counted_to) OVER () + $7 AS part_end
    FROM budgets AS b
    -- A budget is due after twice the minimum age, not every second: one read of the ledger counts
    -- all budgets that are due.
    WHERE b.counted_to < now() - $6 * 2 AND b.counted_to < b.period_end
      AND ($8::text[] IS NULL OR b.tenant = ANY ($8)) AND ($9::text IS NULL OR b.name = $9)
)
-- The part begins at the budget that is furthest behind. Budgets that begin after the part wait;
-- the others are counted with it.
, counted AS MATERIALIZED (
    SELECT d.*, least(d.part_end, now() - $6, d.period_end) AS counts_before
    FROM due AS d
    WHERE d.counted_to < d.part_end
)
{sums}
, noted AS (
    UPDATE budgets AS b
    SET counted_to = s.counts_before, spent = b.spent + s.amount, unpriced_calls = b.unpriced_calls + s.unpriced_calls
    FROM summed AS s
    -- Another process may have counted the same part, or the budget may have been changed.
    WHERE b.tenant = s.tenant AND b.name = s.name AND b.version = s.version AND b.counted_to = s.counted_to
    RETURNING b.counted_to < least(now() - $6 * 2, b.period_end) AS is_behind
)
-- Zero when another process has counted the same part, because that process continues.
SELECT count(*) FILTER (WHERE is_behind)
       + CASE WHEN count(*) > 0 THEN (SELECT count(*) FROM due WHERE counted_to >= part_end) ELSE 0 END AS count
FROM noted
