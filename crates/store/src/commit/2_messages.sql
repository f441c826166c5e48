-- $6 commit, $7 bucket, $8 thread, $9 position, $10 message, $11 batch_id, $12 sequence_num, $13 batch_type, $14 role,
-- $15 content, $16 tool_calls, $17 metadata, $18 token_count, $19 attempt.
, fresh AS MATERIALIZED (
    -- Messages that are there already must not count as anyone's predecessor, so they are left out before the chain is
    -- built. This sees the state before the statement; that is enough, because nobody else writes these threads under
    -- this epoch: after an unknown outcome the owner raises its epoch, which waits for the doubtful statement.
    SELECT i.*
    FROM unnest($6::bigint[], $7::smallint[], $8::text[], $9::bigint[], $10::text[], $11::bigint[], $12::integer[],
                $13::text[], $14::text[], $15::text[], $16::text[], $17::text[], $18::bigint[], $19::bigint[])
         AS i (number, bucket, thread_id, position, message_id, batch_id, sequence_num,
               batch_type, role, content, tool_calls, metadata, token_count, attempt)
    JOIN fence USING (number)
    WHERE NOT EXISTS (
        SELECT FROM messages AS m
        WHERE m.bucket = i.bucket AND m.thread_id = i.thread_id AND m.message_id = i.message_id
    )
)
, written AS (
    INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, sequence_num, batch_type, role, content,
                          tool_calls, metadata, token_count, parent_id, attempt)
    SELECT f.bucket, f.thread_id, f.position, f.message_id, f.batch_id, f.sequence_num, f.batch_type, f.role, f.content,
           f.tool_calls::jsonb, f.metadata::jsonb, f.token_count,
           coalesce(lag(f.position) OVER (PARTITION BY f.bucket, f.thread_id ORDER BY f.position), t.head_position),
           f.attempt
    FROM fresh AS f
    LEFT JOIN threads AS t ON t.bucket = f.bucket AND t.thread_id = f.thread_id
    -- The second wall. Only for this key: two messages at one position would be a defect, and must not pass silently.
    ON CONFLICT (bucket, thread_id, message_id) DO NOTHING
    RETURNING bucket, thread_id, position
)
, heads AS (
    -- Counted from what was written, not from what came: the same commit twice changes nothing.
    INSERT INTO threads AS t (bucket, thread_id, head_position, message_count)
    SELECT bucket, thread_id, max(position), count(*)
    FROM written
    GROUP BY bucket, thread_id
    ON CONFLICT (bucket, thread_id) DO UPDATE
    SET head_position = greatest(t.head_position, excluded.head_position),
        message_count = t.message_count + excluded.message_count
)
