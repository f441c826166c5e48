-- Outbox batches that have been published.
, published AS (
    DELETE FROM outbox AS o
    USING sent_rows AS i
    WHERE o.bucket = i.bucket AND o.position = i.position
)
