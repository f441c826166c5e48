-- $6 how old what is counted must be, $7 how much of the ledger is read at once, $8 tenants (NULL: all) and $9 name (NULL: every budget of
-- theirs). What is younger may not be visible yet, for a row's time is that of its statement, which ends later.
WITH due AS MATERIALIZED (
    SELECT b.*, min(b.counted_to) OVER () + $7 AS part_end
    FROM budgets AS b
    -- Not again after each second: all that is counted at once costs one read of the ledger.
    WHERE b.counted_to < now() - $6 * 2 AND b.counted_to < b.period_end
      AND ($8::text[] IS NULL OR b.tenant = ANY ($8)) AND ($9::text IS NULL OR b.name = $9)
)
-- The part that begins where the budget stands that is furthest behind: the others wait for it, or go with it.
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
    -- Another process may have counted the same, or the budget may have been changed.
    WHERE b.tenant = s.tenant AND b.name = s.name AND b.version = s.version AND b.counted_to = s.counted_to
    RETURNING b.counted_to < least(now() - $6 * 2, b.period_end) AS is_behind
)
-- Nothing where another process has counted the same part: it goes on.
SELECT count(*) FILTER (WHERE is_behind)
       + CASE WHEN count(*) > 0 THEN (SELECT count(*) FROM due WHERE counted_to >= part_end) ELSE 0 END AS count
FROM noted
