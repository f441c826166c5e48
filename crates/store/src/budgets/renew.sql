-- $1 tenant, $2 name, $3 version, $4 end of the period that has ended, $5 start and $6 end of the
-- current one, ms. A period is renewed once, however many processes run this statement.
WITH begun AS (
    UPDATE budgets AS b
    SET period_start = 'epoch'::timestamptz + k.starts * interval '1 ms', period_end = 'epoch'::timestamptz + k.ends * interval '1 ms',
        counted_to = 'epoch'::timestamptz + k.starts * interval '1 ms', spent = 0, unpriced_calls = 0
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
         AS k (tenant, name, version, ended, starts, ends)
    WHERE b.tenant = k.tenant AND b.name = k.name AND b.version = k.version
      AND b.period_end = 'epoch'::timestamptz + k.ended * interval '1 ms'
    RETURNING 1
)
SELECT count(*) AS count FROM begun
