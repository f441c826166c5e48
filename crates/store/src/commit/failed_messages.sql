-- Messages that failed.
, failed_ends AS (
    INSERT INTO failed_messages (bucket, thread_id, position, message_id, attempt, role, batch_type, code, text, missing,
                                 is_retryable)
    SELECT i.bucket, i.thread_id, i.position, i.message_id, i.attempt, i.role, i.batch_type, i.code, i.text,
           i.missing::jsonb, i.is_retryable
    FROM failed_message_rows AS i
    -- The first failure stays, because subscribers have already received it.
    ON CONFLICT DO NOTHING
)
