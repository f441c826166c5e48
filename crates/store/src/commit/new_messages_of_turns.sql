-- Messages with and without a turn.
, fresh AS MATERIALIZED (
    -- Messages that are stored already must not become a predecessor, so they are removed before
    -- the chain is built. This check reads the state before the statement. That is enough, because
    -- no other statement writes these threads under this epoch. After an unknown outcome the owner
    -- raises its epoch, and raising it waits for the doubtful statement.
    SELECT i.number, i.bucket, i.thread_id, i.position, i.message_id,
           -- A batch that is not stored cannot be continued: the turn becomes a batch of its own.
           CASE WHEN i.batch_type = 'continuation' AND c.next IS NULL THEN i.first_position
                ELSE i.batch_id END AS batch_id,
           i.sequence_num + coalesce(c.next, 0) AS sequence_num,
           i.batch_type, i.role, i.content, i.tool_calls, i.tool_call_id, i.metadata, i.token_count, i.attempt,
           i.created_ms, i.started_ms, i.agent_id, i.turn
    FROM message_rows AS i
    LEFT JOIN LATERAL (
        -- The next sequence number of the continued batch.
        SELECT max(m.sequence_num) + 1 AS next FROM messages AS m
        WHERE i.batch_type = 'continuation' AND m.bucket = i.bucket AND m.thread_id = i.thread_id
          AND m.position >= i.batch_id AND m.batch_id = i.batch_id
    ) AS c ON true
    -- A turn is written whole or not at all, so its messages are not checked one by one. OFFSET 0
    -- makes this a look-up by key, whatever the planner assumes.
    WHERE CASE WHEN i.turn IS NOT NULL THEN i.turn IN (SELECT b.turn FROM begun AS b WHERE b.is_new)
               ELSE NOT i.is_checked OR NOT EXISTS (
                   SELECT FROM messages AS m
                   WHERE m.bucket = i.bucket AND m.thread_id = i.thread_id AND m.message_id = i.message_id
                   OFFSET 0
               ) END
)
