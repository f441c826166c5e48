-- The streams for the new number of partitions: $1 partition, $2 checkpoint, $3 incarnation, $4
-- stored_at_ns; $5 owner.
WITH change AS (
    -- The rows are moved only once.
    UPDATE partition_change SET is_moved = true WHERE NOT is_moved RETURNING from_count, to_count
)
, installed AS (
    UPDATE installation SET partitions = c.to_count FROM change AS c
)
, written AS (
    INSERT INTO partitions AS p (partition_id, epoch, owner, lease_until, checkpoint, incarnation, position_ms, commits, read_seq, read_at_ns)
    SELECT s.partition_id, antiphon_next_epoch(0), $5, clock_timestamp() + interval '100 years', s.checkpoint, s.incarnation,
           -- A bucket may come from any partition, so the new value is at least the highest one of
           -- all partitions.
           (SELECT max(position_ms) FROM partitions),
           1, CASE WHEN s.stored_at_ns IS NULL THEN 0 ELSE s.checkpoint END, s.stored_at_ns
    FROM change
    CROSS JOIN unnest($1::smallint[], $2::bigint[], $3::text[], $4::bigint[]) AS s (partition_id, checkpoint, incarnation, stored_at_ns)
    ON CONFLICT (partition_id) DO UPDATE
    SET checkpoint = excluded.checkpoint, incarnation = excluded.incarnation, position_ms = excluded.position_ms,
        commits = p.commits + 1, read_seq = excluded.read_seq, read_at_ns = excluded.read_at_ns, updated_at = clock_timestamp()
)
, gone AS (
    DELETE FROM partitions AS p USING change AS c WHERE p.partition_id >= c.to_count
)
, outgoing AS (
    -- Two rows never collide: the position of a batch contains the bucket.
    UPDATE outbox AS o SET bucket = o.bucket % c.to_count FROM change AS c WHERE o.bucket >= c.to_count
)
, waiting AS (
    -- The order in which their owner would have read them: see takeover/spilled_turns.sql.
    SELECT t.bucket, t.thread_id, t.turn_id,
           row_number() OVER (ORDER BY t.incarnation = coalesce(p.incarnation, ''),
                                       CASE WHEN t.incarnation <> coalesce(p.incarnation, '') THEN t.saved_at END,
                                       t.stream_seq, t.came_at) AS number
    FROM change AS c
    CROSS JOIN spilled_turns AS t
    JOIN partitions AS p ON p.partition_id = t.bucket % c.from_count
)
, placed AS (
    -- After two streams are joined, their sequences no longer give an order. '' sorts before the
    -- incarnation of any stream.
    UPDATE spilled_turns AS t
    SET incarnation = '', saved_at = now() + w.number * interval '1 microsecond'
    FROM waiting AS w
    WHERE t.bucket = w.bucket AND t.thread_id = w.thread_id AND t.turn_id = w.turn_id
)
SELECT FROM change
