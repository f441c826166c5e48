-- Failed turns to delete.
, dropped AS (
    DELETE FROM failed_turns AS f
    USING dropped_turn_rows AS i
    WHERE f.bucket = i.bucket AND f.thread_id = i.thread_id AND f.turn_id = i.turn_id
)
