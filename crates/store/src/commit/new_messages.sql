-- Messages, in statements without turns.
, fresh AS MATERIALIZED (
    -- Messages that are stored already must not become a predecessor, so they are removed before
    -- the chain is built. This check reads the state before the statement. That is enough, because
    -- no other statement writes these threads under this epoch. After an unknown outcome the owner
    -- raises its epoch, and raising it waits for the doubtful statement.
    SELECT i.*
    FROM message_rows AS i
    WHERE NOT i.is_checked OR NOT EXISTS (
        SELECT FROM messages AS m
        WHERE m.bucket = i.bucket AND m.thread_id = i.thread_id AND m.message_id = i.message_id
        OFFSET 0
    )
)
