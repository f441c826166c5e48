-- Saved inputs that have ended.
, settled AS (
    DELETE FROM spilled_turns AS o
    USING ended_turn_rows AS i
    WHERE o.bucket = i.bucket AND o.thread_id = i.thread_id AND o.turn_id = i.turn_id
)
