-- $1 worker, $2 lease. The tenant whose erasures have waited the longest for a worker goes first,
-- so that one with many open erasures does not hold up the others. SKIP LOCKED: two workers that
-- look at the same time take two erasures. One whose worker has died is due when its lease has
-- ended.
WITH heads AS MATERIALIZED (
    SELECT DISTINCT ON (h.tenant) h.erasure_id, h.due_at,
           (SELECT max(r.started_at) FROM erasures AS r WHERE r.tenant = h.tenant) AS served_at
    FROM erasures AS h
    WHERE h.ended_at IS NULL AND h.due_at <= now()
    ORDER BY h.tenant, h.due_at
)
, due AS MATERIALIZED (
    SELECT e.erasure_id FROM erasures AS e JOIN heads AS h USING (erasure_id)
    WHERE e.ended_at IS NULL AND e.due_at <= now()
    ORDER BY h.served_at NULLS FIRST, h.due_at LIMIT 1
    FOR UPDATE OF e SKIP LOCKED
)
UPDATE erasures AS e
SET state = 'running', worker = $1, attempts = e.attempts + 1, due_at = clock_timestamp() + $2,
    started_at = coalesce(e.started_at, clock_timestamp())
FROM due
WHERE e.erasure_id = due.erasure_id
RETURNING e.erasure_id, e.tenant, e.kind, e.subject, e.is_preview, e.actor, e.attempts, e.counts,
          (extract(epoch FROM clock_timestamp() - e.created_at) * 1000)::bigint AS waited_ms
