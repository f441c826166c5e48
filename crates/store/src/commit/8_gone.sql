-- Entries that are missing from the stream and that the checkpoint skips: $1 commit, $2
-- incarnation, $3 first, $4 last, $5 detail.
, gone AS (
    INSERT INTO incidents (partition_id, incarnation, first_seq, kind, last_seq, detail)
    SELECT f.partition_id, i.incarnation, i.first_seq, 'entries_gone', i.last_seq, i.detail
    FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::text[])
         AS i (number, incarnation, first_seq, last_seq, detail)
    JOIN fence AS f USING (number)
    -- An earlier owner has recorded this gap, but has not committed past it.
    ON CONFLICT (partition_id, incarnation, first_seq, kind) DO NOTHING
)
