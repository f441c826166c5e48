-- $1 bucket, $2 thread, $3 turn of a person, $4 run.
SELECT code, text, is_retryable FROM failed_turns
WHERE bucket = $1 AND thread_id = $2 AND turn_id = $3 AND run >= $4
