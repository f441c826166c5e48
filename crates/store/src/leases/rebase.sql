-- $1 worker, $2 partition, $3 epoch, $4 commits, $5 checkpoint, $6 incarnation, $7 read_seq, $8
-- read_at_ns; incidents as arrays: $9 incarnation, $10 first_seq, $11 kind, $12 last_seq, $13
-- detail.
WITH moved AS (
    UPDATE partitions
    SET commits = commits + 1, checkpoint = $5, incarnation = $6, read_seq = $7, read_at_ns = $8, updated_at = clock_timestamp()
    WHERE partition_id = $2 AND epoch = $3 AND commits = $4 AND owner = $1
    RETURNING partition_id
)
, noted AS (
    INSERT INTO incidents (partition_id, incarnation, first_seq, kind, last_seq, detail)
    SELECT m.partition_id, i.incarnation, i.first_seq, i.kind, i.last_seq, i.detail
    FROM moved AS m
    CROSS JOIN unnest($9::text[], $10::bigint[], $11::text[], $12::bigint[], $13::text[])
         AS i (incarnation, first_seq, kind, last_seq, detail)
    -- The same incident has happened again and is not acknowledged yet.
    ON CONFLICT (partition_id, incarnation, first_seq, kind) DO UPDATE
    SET last_seq = excluded.last_seq, detail = excluded.detail, detected_at = excluded.detected_at, acknowledged_at = NULL,
        acknowledged_by = NULL
)
SELECT partition_id FROM moved
