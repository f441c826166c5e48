-- $1 bucket, $2 kind, $3 key of the dead letter. A row that a concurrent claim has changed is not
-- claimed, because its condition is checked again.
WITH claimed AS (
    UPDATE dead_letters SET claimed_at = clock_timestamp()
    WHERE bucket = $1 AND kind = $2 AND key = $3 AND replayed_at IS NULL
      AND (claimed_at IS NULL OR claimed_at < clock_timestamp() - interval '1 minute')
    RETURNING 1
)
SELECT EXISTS (SELECT FROM claimed) AS is_claimed, replayed_at IS NOT NULL AS is_replayed
FROM dead_letters WHERE bucket = $1 AND kind = $2 AND key = $3
