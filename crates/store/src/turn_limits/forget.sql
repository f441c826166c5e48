-- $1 idle time after which a limit is deleted, $2 time without a report after which the turns of a
-- worker are deleted, $3 worker, $4 its current turns.
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
