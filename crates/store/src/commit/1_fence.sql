-- One commit of several partitions: one statement, one round trip, all or nothing per partition.
-- The parts of this statement are joined by parts.rs, in the order of their names; what a group does not need is left out.
-- Each part numbers its parameters from $1; parts.rs moves them to their place.
--
-- $1 owner; arrays with one item per commit: $2 partition, $3 epoch, $4 checkpoint, $5 position_ms.
-- Rows of the later parts say by number (from 1) to which of these commits they belong.
WITH fence AS MATERIALIZED (
    -- Everything below is joined to this list, so a commit whose lease is gone writes nothing at all. The lock makes a
    -- takeover wait for this statement. When this statement waits for a takeover instead, READ COMMITTED looks at the
    -- row again after the wait, finds the new epoch and drops it: a plain SELECT would still see the old one.
    --
    -- FOR NO KEY UPDATE and not FOR KEY SHARE: the last part updates these rows. Two statements that had both
    -- taken the weaker lock would then wait for each other. ORDER BY: renewals and other commits lock in the same
    -- order, so there is no cycle.
    SELECT c.number, p.partition_id, c.checkpoint, c.position_ms
    FROM unnest($2::smallint[], $3::bigint[], $4::bigint[], $5::bigint[])
         WITH ORDINALITY AS c (partition_id, epoch, checkpoint, position_ms, number)
    JOIN partitions AS p ON p.partition_id = c.partition_id AND p.epoch = c.epoch
    WHERE p.owner = $1
    ORDER BY p.partition_id
    FOR NO KEY UPDATE OF p
)
