-- $1 age, $2 how many. Deletes temporary threads whose last message is older, with all that belongs
-- to them except their model calls. Threads that a commit changes just now stay for the next round,
-- and several workers share the work.
WITH old AS MATERIALIZED (
    SELECT t.bucket, t.thread_id FROM threads AS t
    WHERE t.is_temporary AND t.created_at < now() - $1
      -- The upper bits of a position are its time in ms.
      AND (t.head_position IS NULL OR to_timestamp((t.head_position >> 22) / 1000.0 + 1704067200) < now() - $1)
    ORDER BY t.created_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
, messages_gone AS (DELETE FROM messages AS t USING old AS o WHERE t.bucket = o.bucket AND t.thread_id = o.thread_id)
, failed_gone AS (DELETE FROM failed_messages AS t USING old AS o WHERE t.bucket = o.bucket AND t.thread_id = o.thread_id)
, turns_gone AS (DELETE FROM failed_turns AS t USING old AS o WHERE t.bucket = o.bucket AND t.thread_id = o.thread_id)
, keys_gone AS (DELETE FROM idempotency_keys AS t USING old AS o WHERE t.bucket = o.bucket AND t.thread_id = o.thread_id)
, responses_gone AS (DELETE FROM responses AS t USING old AS o WHERE t.bucket = o.bucket AND t.thread_id = o.thread_id)
, feedback_gone AS (DELETE FROM feedback AS t USING old AS o WHERE t.bucket = o.bucket AND t.thread_id = o.thread_id)
, gone AS (DELETE FROM threads AS t USING old AS o WHERE t.bucket = o.bucket AND t.thread_id = o.thread_id RETURNING true)
SELECT count(*) AS count FROM gone
