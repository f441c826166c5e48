-- $1 for how long a limit is not used that is forgotten, $2 for how long a worker is away whose turns are, $3 worker, $4 the turns
-- that it has.
WITH gone AS (
    DELETE FROM turn_limit_workers WHERE held_until < clock_timestamp() - $2
)
, limits AS (
    DELETE FROM turn_limits WHERE refilled_at < clock_timestamp() - $1 AND tokens_left >= 0
)
DELETE FROM turn_limit_turns AS t
WHERE (t.worker_id = $3 AND t.turn_id <> ALL ($4::text[]))
   OR NOT EXISTS (
      SELECT FROM turn_limit_workers AS w WHERE w.worker_id = t.worker_id AND w.held_until >= clock_timestamp() - $2)
