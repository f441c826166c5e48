-- Entries to publish.
, outgoing AS (
    INSERT INTO outbox (bucket, position, entries)
    SELECT i.bucket, i.position, i.entries::jsonb
    FROM outbox_rows AS i
    ON CONFLICT (bucket, position) DO NOTHING
)
