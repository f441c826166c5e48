-- Saved messages that have ended.
, ended AS (
    DELETE FROM spilled_messages AS s
    USING ended_spill_rows AS i
    WHERE s.bucket = i.bucket AND s.thread_id = i.thread_id AND s.message_id = i.message_id
)
