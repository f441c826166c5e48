, fence AS MATERIALIZED (
    -- Everything below is joined to this list. So a commit writes nothing if it was decided on
    -- another state than the stored one. In that case either the lease is lost (another epoch), or
    -- the store has gone back in time (fewer commits or saves).
    --
    -- The lock makes a takeover wait for this statement. If this statement waits for a takeover
    -- instead, READ COMMITTED reads the row again after the wait, finds the new epoch and drops the
    -- row. A plain SELECT would still see the old epoch.
    --
    -- FOR NO KEY UPDATE, not FOR KEY SHARE: the last part updates these rows, and two statements
    -- that both held the weaker lock would deadlock. ORDER BY: renewals and other commits lock in
    -- the same order, so there is no cycle.
    SELECT c.number, p.partition_id, c.checkpoint, c.position_ms, c.read_seq, c.read_at_ns
    FROM commit_rows AS c
    JOIN partitions AS p ON p.partition_id = c.partition_id AND p.epoch = c.epoch AND p.commits = c.commits
    -- Saves are counted separately from the commits. A stored count above the owner's count means
    -- saves whose answer the owner has not received yet. Most owners have made no saves, and for
    -- them nothing is looked up.
    WHERE p.owner = c.owner
      AND (c.saves = 0 OR c.saves <= (SELECT s.saves FROM partition_saves AS s WHERE s.partition_id = c.partition_id))
    ORDER BY p.partition_id
    FOR NO KEY UPDATE OF p
)
