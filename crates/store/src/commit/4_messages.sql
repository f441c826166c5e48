, written AS (
    INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, sequence_num, batch_type, role, content,
                          tool_calls, tool_call_id, metadata, token_count, parent_id, attempt, out_of_range)
    SELECT f.bucket, f.thread_id, f.position, f.message_id, f.batch_id, f.sequence_num, f.batch_type, f.role, f.content,
           f.tool_calls::jsonb, f.tool_call_id, f.metadata::jsonb, f.token_count,
           coalesce(lag(f.position) OVER (PARTITION BY f.bucket, f.thread_id ORDER BY f.position), t.head_position),
           f.attempt,
           -- A batch that goes on stands apart from where it began.
           f.batch_type = 'continuation'
    FROM fresh AS f
    -- OFFSET 0: a look-up by key. As a plain join, planned while the table is small, it reads all threads for each message.
    LEFT JOIN LATERAL (
        SELECT t.head_position FROM threads AS t
        WHERE t.bucket = f.bucket AND t.thread_id = f.thread_id
        OFFSET 0
    ) AS t ON true
    -- The second check against duplicates. Only for this key: two messages at one position would be a defect, and must not pass silently.
    ON CONFLICT (bucket, thread_id, message_id) DO NOTHING
    RETURNING bucket, thread_id, position
)
, heads AS (
    -- Counted from what was written, not from what came: some of it may have been there.
    INSERT INTO threads AS t (bucket, thread_id, head_position, message_count)
    SELECT bucket, thread_id, max(position), count(*)
    FROM written
    GROUP BY bucket, thread_id
    ON CONFLICT (bucket, thread_id) DO UPDATE
    SET head_position = greatest(t.head_position, excluded.head_position),
        message_count = t.message_count + excluded.message_count
)
