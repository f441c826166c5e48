-- Entries that are missing from the stream and that the checkpoint skips.
, gone AS (
    INSERT INTO incidents (partition_id, incarnation, first_seq, kind, last_seq, detail)
    SELECT i.partition_id, i.incarnation, i.first_seq, 'entries_gone', i.last_seq, i.detail
    FROM incident_rows AS i
    -- An earlier owner has recorded this gap, but has not committed past it.
    ON CONFLICT (partition_id, incarnation, first_seq, kind) DO NOTHING
)
