-- $1 buckets, $2 ids of threads. Entries keep their order. A row whose entries are all removed is
-- kept, because its owner relies on it.
WITH hit AS MATERIALIZED (
    SELECT o.bucket, o.position, e.number
    FROM outbox AS o
    CROSS JOIN LATERAL jsonb_array_elements(o.entries) WITH ORDINALITY AS e (entry, number)
    WHERE e.entry -> 'opened' ->> 'thread' = ANY ($2)
       OR e.entry -> 'turn' ->> 'thread' = ANY ($2)
       OR e.entry -> 'task' ->> 'agent' = ANY ($2)
       OR antiphon_origin_thread(e.entry -> 'task' ->> 'agent', (e.entry -> 'task' ->> 'metadata')::jsonb) = ANY ($2)
)
, scrubbed AS (
    UPDATE outbox AS o
    SET entries = coalesce((SELECT jsonb_agg(e.entry ORDER BY e.number)
                            FROM jsonb_array_elements(o.entries) WITH ORDINALITY AS e (entry, number)
                            WHERE NOT EXISTS (SELECT FROM hit AS h WHERE h.bucket = o.bucket AND h.position = o.position
                                                                     AND h.number = e.number)), '[]')
    WHERE (o.bucket, o.position) IN (SELECT h.bucket, h.position FROM hit AS h)
)
SELECT count(*) AS count FROM hit WHERE cardinality($1::smallint[]) >= 0
