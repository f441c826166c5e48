-- $1 commit, $2 bucket, $3 thread, $4 position, $5 message, $6 batch_id, $7 sequence_num, $8
-- batch_type, $9 role, $10 content, $11 tool_calls, $12 tool_call_id, $13 metadata, $14
-- token_count, $15 attempt, $16 creation time and $17 start time in ms since 1970 (NULL: not
-- known), $18 number of the turn (from 1, in the order of the part above; NULL: none).
, fresh AS MATERIALIZED (
    -- Messages that are stored already must not become a predecessor, so they are removed before
    -- the chain is built. This check reads the state before the statement. That is enough, because
    -- no other statement writes these threads under this epoch. After an unknown outcome the owner
    -- raises its epoch, and raising it waits for the doubtful statement.
    SELECT i.number, i.bucket, i.thread_id, i.position, i.message_id,
           -- A batch that is not stored cannot be continued: the turn becomes a batch of its own.
           CASE WHEN i.batch_type = 'continuation' AND c.next IS NULL
                THEN (SELECT min(o.position) FROM unnest($18::bigint[], $4::bigint[]) AS o (turn, position)
                      WHERE o.turn = i.turn)
                ELSE i.batch_id END AS batch_id,
           i.sequence_num + coalesce(c.next, 0) AS sequence_num,
           i.batch_type, i.role, i.content, i.tool_calls, i.tool_call_id, i.metadata, i.token_count, i.attempt,
           i.created_ms, i.started_ms, i.turn
    FROM unnest($1::bigint[], $2::smallint[], $3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::integer[],
                $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::bigint[], $15::bigint[],
                $16::bigint[], $17::bigint[], $18::bigint[])
         AS i (number, bucket, thread_id, position, message_id, batch_id, sequence_num,
               batch_type, role, content, tool_calls, tool_call_id, metadata, token_count, attempt, created_ms, started_ms,
               turn)
    JOIN fence USING (number)
    LEFT JOIN LATERAL (
        -- The next sequence number of the continued batch.
        SELECT max(m.sequence_num) + 1 AS next FROM messages AS m
        WHERE i.batch_type = 'continuation' AND m.bucket = i.bucket AND m.thread_id = i.thread_id
          AND m.position >= i.batch_id AND m.batch_id = i.batch_id
    ) AS c ON true
    -- A turn is written whole or not at all, so its messages are not checked one by one. OFFSET 0
    -- makes this a look-up by key, whatever the planner assumes.
    WHERE CASE WHEN i.turn IS NOT NULL THEN i.turn IN (SELECT b.turn FROM begun AS b WHERE b.is_new)
               ELSE /*lean*/ true /*careful*/ NOT EXISTS (
                   SELECT FROM messages AS m
                   WHERE m.bucket = i.bucket AND m.thread_id = i.thread_id AND m.message_id = i.message_id
                   OFFSET 0
               ) /*end*/ END
)
