WITH change AS (
    DELETE FROM partition_change WHERE is_moved RETURNING started_at
)
, aged AS (
    -- Publishers could not send the missing chunks of an open message during the change, so its age
    -- does not include the change.
    UPDATE spilled_messages AS s SET saved_at = s.saved_at + (clock_timestamp() - c.started_at) FROM change AS c
)
UPDATE partitions AS p
SET owner = NULL, lease_until = clock_timestamp(), updated_at = clock_timestamp()
FROM change
