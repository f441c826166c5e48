-- $1 worker, $2 lease. SKIP LOCKED: two workers that look at the same time take two erasures. One
-- whose worker has died is due when its lease has ended.
WITH due AS MATERIALIZED (
    SELECT erasure_id FROM erasures
    WHERE ended_at IS NULL AND due_at <= now()
    ORDER BY due_at LIMIT 1
    FOR UPDATE SKIP LOCKED
)
UPDATE erasures AS e
SET state = 'running', worker = $1, attempts = e.attempts + 1, due_at = clock_timestamp() + $2,
    started_at = coalesce(e.started_at, clock_timestamp())
FROM due
WHERE e.erasure_id = due.erasure_id
RETURNING e.erasure_id, e.tenant, e.kind, e.subject, e.is_preview, e.actor, e.attempts, e.counts,
          (extract(epoch FROM clock_timestamp() - e.created_at) * 1000)::bigint AS waited_ms
