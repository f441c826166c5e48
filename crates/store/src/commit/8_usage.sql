-- Calls of models: $1 commit, $2 bucket, $3 thread, $4 answer, $5 number of the call, $6 agent, $7
-- kind, $8 model, $9 input tokens, $10 output tokens, $11 cached, $12 reasoning, $13 true when the
-- answer did not complete, $14 true when the counts are estimates, $15 why the answer ended.
, used AS (
    INSERT INTO usage (bucket, thread_id, message_id, call, agent_id, kind, model, input_tokens, output_tokens, cached_tokens,
                       reasoning_tokens, is_partial, is_estimated, finish_reason)
    SELECT i.bucket, i.thread_id, i.message_id, i.call, i.agent_id, i.kind, i.model, i.input_tokens, i.output_tokens,
           i.cached_tokens, i.reasoning_tokens, i.is_partial, i.is_estimated, i.finish_reason
    FROM unnest($1::bigint[], $2::smallint[], $3::text[], $4::text[], $5::smallint[], $6::text[], $7::text[], $8::text[],
                $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::boolean[], $14::boolean[], $15::text[])
         AS i (number, bucket, thread_id, message_id, call, agent_id, kind, model, input_tokens, output_tokens, cached_tokens,
               reasoning_tokens, is_partial, is_estimated, finish_reason)
    JOIN fence USING (number)
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
