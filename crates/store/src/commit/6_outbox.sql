-- Published entries: $1 commit, $2 partition, $3 position.
, published AS (
    DELETE FROM outbox AS o
    USING unnest($1::bigint[], $2::smallint[], $3::bigint[]) AS i (number, bucket, position)
    JOIN fence USING (number)
    WHERE o.bucket = i.bucket AND o.position = i.position
)
-- Entries to publish: $4 commit, $5 partition, $6 position, $7 entries.
, outgoing AS (
    INSERT INTO outbox (bucket, position, entries)
    SELECT i.bucket, i.position, i.entries::jsonb
    FROM unnest($4::bigint[], $5::smallint[], $6::bigint[], $7::text[]) AS i (number, bucket, position, entries)
    JOIN fence USING (number)
    ON CONFLICT (bucket, position) DO NOTHING
)
