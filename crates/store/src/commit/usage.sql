-- Calls of models.
, used AS (
    INSERT INTO usage (bucket, thread_id, message_id, call, agent_id, kind, model, input_tokens, output_tokens, cached_tokens,
                       reasoning_tokens, is_partial, is_estimated, finish_reason)
    SELECT i.bucket, i.thread_id, i.message_id, i.call, i.agent_id, i.kind, i.model, i.input_tokens, i.output_tokens,
           i.cached_tokens, i.reasoning_tokens, i.is_partial, i.is_estimated, i.finish_reason
    FROM usage_rows AS i
    -- A turn may be decided again by an owner that did not know of the first decision; its usage is
    -- not added again. Not ON CONFLICT, which writes another WAL record per row. Under this epoch
    -- no other statement writes these rows, and this one has no row twice.
    WHERE NOT EXISTS (
        SELECT FROM usage AS u
        WHERE u.bucket = i.bucket AND u.thread_id = i.thread_id AND u.message_id = i.message_id AND u.call = i.call
        OFFSET 0
    )
    -- Calls with a number of 1024 or more are written after their turn has ended, perhaps after the
    -- thread was erased.
    AND (i.call < 1024 OR NOT EXISTS (
        SELECT FROM erased_threads AS e
        WHERE e.bucket = i.bucket AND e.thread_id = i.thread_id AND e.recreated_at IS NULL
        OFFSET 0
    ))
)
