-- Finished turns.
, begun AS MATERIALIZED (
    -- Every committed turn has its input, whatever its run. If a message with the id of the answer
    -- were stored already, only half of the turn would be written.
    SELECT i.turn, i.bucket, i.thread_id, i.turn_id, i.ends_failed,
           NOT i.is_checked
           OR (NOT EXISTS (SELECT FROM messages AS m
                           WHERE m.bucket = i.bucket AND m.thread_id = i.thread_id AND m.message_id = i.first_id
                           OFFSET 0)
               AND NOT EXISTS (SELECT FROM messages AS m
                               WHERE m.bucket = i.bucket AND m.thread_id = i.thread_id AND m.message_id = i.last_id
                               OFFSET 0)) AS is_new
    FROM turn_rows AS i
    WHERE i.item IS NULL OR i.item IN (SELECT item FROM won)
)
, retried AS (
    DELETE FROM failed_turns AS f USING begun AS b
    WHERE f.bucket = b.bucket AND f.thread_id = b.thread_id AND f.turn_id = b.turn_id AND b.ends_failed
)
