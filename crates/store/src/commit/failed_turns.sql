-- Turns that failed, each once.
, failures AS (
    INSERT INTO failed_turns AS t (bucket, thread_id, turn_id, agent_id, run, content, metadata, options, origin, code,
                                   text, is_retryable, partial)
    SELECT i.bucket, i.thread_id, i.turn_id, i.agent_id, i.run, i.content, i.metadata::jsonb, i.options::jsonb,
           i.origin::jsonb, i.code, i.text, i.is_retryable, i.partial
    FROM failed_turn_rows AS i
    ON CONFLICT (bucket, thread_id, turn_id) DO UPDATE
    SET agent_id = excluded.agent_id, run = excluded.run, content = excluded.content, metadata = excluded.metadata,
        options = excluded.options, origin = excluded.origin, code = excluded.code, text = excluded.text,
        is_retryable = excluded.is_retryable, partial = excluded.partial,
        failed_at = CASE WHEN t.run = excluded.run THEN t.failed_at ELSE excluded.failed_at END
)
, answered AS (
    -- A person has written. Pending follow-ups from before are cancelled, and one that has fired
    -- but has no answer yet is withdrawn.
    UPDATE timers AS t
    SET state = CASE t.state WHEN 'pending' THEN 'cancelled' ELSE 'withdrawn' END, ended_at = clock_timestamp(), ended_by = 'message'
    FROM failed_turn_rows AS f
    WHERE t.bucket = f.bucket AND t.thread_id = f.thread_id AND t.kind = 'follow_up' AND NOT f.is_synthetic
      AND (t.state = 'pending' OR (t.state = 'fired' AND NOT EXISTS (
               -- The first message of the follow-up's turn.
               SELECT FROM messages AS m
               WHERE m.bucket = t.bucket AND m.message_id = t.fired_turn || '-q' AND m.thread_id = t.thread_id
               OFFSET 0)))
)
