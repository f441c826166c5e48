-- $1 worker, $2 how long it counts as alive; turns that it continues: $3 keys, $4 turns; turns that
-- have ended: $5 keys, $6 turns; their usage: $7 keys in order, $8 tokens; $9 turns whose ends the
-- worker has committed.
WITH there AS (
    INSERT INTO turn_limit_workers AS w (worker_id, held_until) VALUES ($1, clock_timestamp() + $2)
    ON CONFLICT (worker_id) DO UPDATE SET held_until = excluded.held_until
)
, entered AS (
    INSERT INTO turn_limit_turns AS t (key, turn_id, worker_id)
    -- DISTINCT, because a turn may be entered twice before the first entry is written.
    SELECT DISTINCT e.key, e.turn_id, $1 FROM unnest($3::text[], $4::text[]) AS e (key, turn_id)
    ON CONFLICT (key, turn_id) DO UPDATE SET worker_id = excluded.worker_id
)
, used AS (
    UPDATE turn_limits AS l SET tokens_left = l.tokens_left - s.tokens
    FROM (
        SELECT l.key, u.tokens FROM turn_limits AS l JOIN unnest($7::text[], $8::bigint[]) AS u (key, tokens) USING (key)
        ORDER BY l.key FOR UPDATE OF l
    ) AS s
    WHERE l.key = s.key
)
, finished AS (
    DELETE FROM turn_limit_turns AS t WHERE t.turn_id = ANY ($9::text[])
)
DELETE FROM turn_limit_turns AS t
USING unnest($5::text[], $6::text[]) AS e (key, turn_id)
-- If another worker continues the turn, it stays counted for that worker.
WHERE t.key = e.key AND t.turn_id = e.turn_id AND t.worker_id = $1
