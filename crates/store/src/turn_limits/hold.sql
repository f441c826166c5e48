-- $1 worker, $2 for how long it holds what it says, $3 keys in their order, $4 turns that run now, $5 tokens that were used since it was said last.
WITH said AS MATERIALIZED (
    SELECT * FROM unnest($3::text[], $4::bigint[], $5::bigint[]) AS s (key, running, tokens) ORDER BY s.key
)
, used AS (
    UPDATE turn_limits AS l SET tokens_left = l.tokens_left - s.tokens
    FROM (SELECT l.key, s.tokens FROM turn_limits AS l JOIN said AS s USING (key) WHERE s.tokens > 0 ORDER BY l.key FOR UPDATE OF l) AS s
    WHERE l.key = s.key
)
, held AS (
    INSERT INTO turn_limit_holders AS h (key, worker_id, running, held_until)
    SELECT s.key, $1, s.running, clock_timestamp() + $2 FROM said AS s WHERE s.running > 0
    ON CONFLICT (key, worker_id) DO UPDATE SET running = excluded.running, held_until = excluded.held_until
)
DELETE FROM turn_limit_holders AS h
WHERE (h.worker_id = $1 AND h.key IN (SELECT s.key FROM said AS s WHERE s.running = 0))
   OR h.held_until < now() - interval '1 minute'
