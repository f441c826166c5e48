-- All or nothing. $1 bucket, $2 thread; arrays: $3 position, and as they were read, $4 batch, $5
-- number, $6 type; after the repair, $7 batch, $8 number, $9 type; $10 true if it is out of range
-- of its batch; $11 text of the audit entry (NULL: none), $12 act; $13 actor.
WITH wanted AS MATERIALIZED (
    SELECT i.*
    FROM unnest($3::bigint[], $4::bigint[], $5::integer[], $6::text[], $7::bigint[], $8::integer[], $9::text[], $10::boolean[],
                $11::text[], $12::text[])
         AS i (position, old_batch, old_number, old_type, batch_id, sequence_num, batch_type, is_apart, target, command_id)
)
, still AS MATERIALIZED (
    -- Messages that have changed since the examination must first be examined again.
    SELECT m.position FROM wanted AS w
    JOIN messages AS m ON m.bucket = $1 AND m.thread_id = $2 AND m.position = w.position
    WHERE m.batch_id = w.old_batch AND m.sequence_num = w.old_number AND m.batch_type = w.old_type
    ORDER BY m.position
    FOR UPDATE OF m
)
, fine AS MATERIALIZED (
    SELECT (SELECT count(*) FROM still) = (SELECT count(*) FROM wanted) AS is_fine
)
, mended AS (
    UPDATE messages AS m
    SET batch_id = w.batch_id, sequence_num = w.sequence_num, batch_type = w.batch_type,
        out_of_range = m.position <> w.batch_id AND (m.out_of_range OR w.is_apart)
    FROM wanted AS w
    WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position = w.position AND (SELECT is_fine FROM fine)
    RETURNING 1
)
, revised AS (
    UPDATE threads AS t SET revision = t.revision + 1
    WHERE t.bucket = $1 AND t.thread_id = $2 AND (SELECT is_fine FROM fine)
)
, written AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target)
    SELECT $1, $2, w.command_id, $13, 'repair_message', w.target
    FROM wanted AS w
    WHERE w.target IS NOT NULL AND (SELECT is_fine FROM fine)
)
SELECT count(*) AS count FROM mended
