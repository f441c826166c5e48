-- $1 erasure, $2 attempt, $3 new state, $4 pause before the next attempt, $5 counts, $6 receipt,
-- $7 error. The name of a user is erased with its data.
UPDATE erasures
SET state = $3, due_at = clock_timestamp() + $4, counts = $5, receipt = $6, error = $7,
    ended_at = CASE WHEN $3 IN ('done', 'failed') THEN clock_timestamp() END,
    subject = CASE WHEN kind = 'user' AND $3 = 'done' AND NOT is_preview THEN NULL ELSE subject END
WHERE erasure_id = $1 AND attempts = $2 AND state = 'running'
RETURNING true
