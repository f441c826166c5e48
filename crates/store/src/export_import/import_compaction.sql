-- $1 bucket, $2 thread, $3 compaction, $4 through, $5 kept, $6 summary, $7 strategy, $8 provenance,
-- $9 previous, $10 undone_at_position, $11 valid_from_position.
WITH known AS MATERIALIZED (
    SELECT (c.through_position, c.kept_positions, c.strategy, c.provenance) = ($4, $5::bigint[], $7::text, $8::jsonb)
           AND ($6::text IS NULL OR c.summary IS NOT DISTINCT FROM $6) AND c.previous_id IS NOT DISTINCT FROM $9
           AND c.undone_at_position IS NOT DISTINCT FROM $10 AND c.valid_from_position = $11 AS is_same
    FROM compactions AS c
    WHERE c.bucket = $1 AND c.thread_id = $2 AND c.compaction_id = $3
)
, later AS MATERIALIZED (
    SELECT c.compaction_id FROM compactions AS c
    WHERE c.bucket = $1 AND c.thread_id = $2 AND c.compaction_id > $3
    LIMIT 1
)
, written AS (
    INSERT INTO compactions (bucket, thread_id, compaction_id, through_position, kept_positions, summary, strategy, provenance, previous_id,
                             valid_from_position, undone_at_position, actor)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8::jsonb, $9, $11, $10, 'import'
    WHERE NOT EXISTS (SELECT FROM known) AND NOT EXISTS (SELECT FROM later)
      AND NOT EXISTS (SELECT FROM erased_threads AS e WHERE e.bucket = $1 AND e.thread_id = $2 AND e.recreated_at IS NULL)
    RETURNING 1
)
SELECT CASE WHEN (SELECT is_same FROM known) THEN 'same'
            WHEN EXISTS (SELECT FROM known) THEN 'other'
            WHEN EXISTS (SELECT FROM written) THEN 'written'
            WHEN NOT EXISTS (SELECT FROM later) THEN 'erased'
            ELSE 'before' END AS outcome
