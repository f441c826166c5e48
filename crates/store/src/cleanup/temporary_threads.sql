-- $1 age, $2 how many. Empties temporary threads whose last message is older: everything that was
-- said in them is deleted. Two months later the rows of the threads follow. Until then their model
-- calls have a user, and a turn that ends late is in no list. Threads that a commit changes just
-- now stay for the next round, and several workers share the work.
WITH full_ones AS MATERIALIZED (
    SELECT t.bucket, t.thread_id FROM threads AS t
    WHERE t.is_temporary AND t.emptied_at IS NULL AND t.created_at < now() - $1
      -- The upper bits of a position are its time in ms.
      AND (t.head_position IS NULL OR to_timestamp((t.head_position >> 22) / 1000.0 + 1704067200) < now() - $1)
    ORDER BY t.created_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
, empty_ones AS MATERIALIZED (
    SELECT t.bucket, t.thread_id FROM threads AS t
    WHERE t.is_temporary AND t.emptied_at < now() - interval '60 days'
    ORDER BY t.emptied_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
, old AS MATERIALIZED (SELECT * FROM full_ones UNION ALL SELECT * FROM empty_ones)
, said AS (
    DELETE FROM messages AS t USING old AS o WHERE t.bucket = o.bucket AND t.thread_id = o.thread_id
    RETURNING t.bucket, t.message_id, t.thread_id
)
-- The stream may still have their entries, which are read again after a takeover.
, remembered AS (
    INSERT INTO expired_messages (bucket, message_id, thread_id) SELECT bucket, message_id, thread_id FROM said
    ON CONFLICT DO NOTHING
)
, failed_gone AS (DELETE FROM failed_messages AS t USING old AS o WHERE t.bucket = o.bucket AND t.thread_id = o.thread_id)
, turns_gone AS (DELETE FROM failed_turns AS t USING old AS o WHERE t.bucket = o.bucket AND t.thread_id = o.thread_id)
, keys_gone AS (DELETE FROM idempotency_keys AS t USING old AS o WHERE t.bucket = o.bucket AND t.thread_id = o.thread_id)
, responses_gone AS (DELETE FROM responses AS t USING old AS o WHERE t.bucket = o.bucket AND t.thread_id = o.thread_id)
, feedback_gone AS (DELETE FROM feedback AS t USING old AS o WHERE t.bucket = o.bucket AND t.thread_id = o.thread_id)
, compactions_gone AS (DELETE FROM compactions AS t USING old AS o WHERE t.bucket = o.bucket AND t.thread_id = o.thread_id)
-- Facts of a user stay; those of the thread serve no thread any more.
, facts_gone AS (DELETE FROM facts AS t USING old AS o WHERE t.thread_id = o.thread_id AND t.scope = 'thread:' || o.thread_id)
, emptied AS (
    UPDATE threads AS t
    SET emptied_at = clock_timestamp(), message_count = 0, hidden_count = 0, revision = t.revision + 1
    FROM full_ones AS o WHERE t.bucket = o.bucket AND t.thread_id = o.thread_id
    RETURNING true
)
, gone AS (
    DELETE FROM threads AS t USING empty_ones AS o WHERE t.bucket = o.bucket AND t.thread_id = o.thread_id
    RETURNING true
)
SELECT (SELECT count(*) FROM emptied) + (SELECT count(*) FROM gone) AS count
