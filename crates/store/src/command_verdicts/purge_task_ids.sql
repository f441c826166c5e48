-- $1 how many at most.
WITH old AS MATERIALIZED (
    -- now() and not clock_timestamp(): the index on created_at needs a time that stands still. SKIP LOCKED: a commit that is
    -- taking an id over just now keeps it, and several workers share the work.
    SELECT i.bucket, i.agent_id, i.task_id
    FROM task_ids AS i
    WHERE i.created_at < now() - interval '7 days'
      -- Operators name pending and failed tasks by their ids, and a pending one must not come twice.
      AND EXISTS (SELECT FROM agents AS a
                  WHERE a.bucket = i.bucket AND a.agent_id = i.agent_id AND a.head_position >= i.position
                  OFFSET 0)
      AND NOT EXISTS (SELECT FROM failed_tasks AS f
                      WHERE f.bucket = i.bucket AND f.agent_id = i.agent_id AND f.position = i.position
                      OFFSET 0)
    ORDER BY i.created_at
    LIMIT $1
    FOR UPDATE OF i SKIP LOCKED
)
, gone AS (
    DELETE FROM task_ids AS i USING old AS o
    WHERE i.bucket = o.bucket AND i.agent_id = o.agent_id AND i.task_id = o.task_id
    RETURNING 1
)
SELECT count(*) AS count FROM gone
