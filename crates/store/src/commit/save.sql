-- $1 partition; the state that the store has acknowledged to the saving owner: $2 epoch, $3
-- commits, $29 saves.
WITH fence AS MATERIALIZED (
    -- FOR KEY SHARE, not a stronger lock: it does not conflict with commits and renewals. A grant
    -- changes the key, so it waits for this lock. So nothing is saved under an old epoch, or in a
    -- store that has gone back in time.
    SELECT p.partition_id FROM partitions AS p
    WHERE p.partition_id = $1 AND p.epoch = $2 AND p.commits >= $3 AND p.owner IS NOT NULL
      AND $29 <= coalesce((SELECT s.saves FROM partition_saves AS s WHERE s.partition_id = $1), 0)
    FOR KEY SHARE
)
-- Saves are counted so that the next write of the owner detects a store that has gone back to
-- before this save.
, counted AS (
    INSERT INTO partition_saves AS s (partition_id, saves)
    SELECT f.partition_id, 1 FROM fence AS f
    ON CONFLICT (partition_id) DO UPDATE SET saves = s.saves + 1
    RETURNING s.saves
)
-- Parts of messages: $4 bucket, $5 thread, $6 message, $7 first_chunk, $8 attempt, $9 role, $10
-- first_seq, $11 open_ms, $12 gap_ms, $13 idle_ms, $14 earlier_calls, $15 chunks.
, parts AS (
    INSERT INTO spilled_messages (bucket, thread_id, message_id, first_chunk, attempt, role, first_seq, open_ms, gap_ms, idle_ms,
                                  earlier_calls, chunks)
    SELECT i.bucket, i.thread_id, i.message_id, i.first_chunk, i.attempt, i.role, i.first_seq, i.open_ms, i.gap_ms, i.idle_ms,
           i.earlier_calls::jsonb, i.chunks
    FROM unnest($4::smallint[], $5::text[], $6::text[], $7::integer[], $8::bigint[], $9::text[], $10::bigint[], $11::bigint[],
                $12::bigint[], $13::bigint[], $14::text[], $15::bytea[])
         AS i (bucket, thread_id, message_id, first_chunk, attempt, role, first_seq, open_ms, gap_ms, idle_ms, earlier_calls, chunks)
    CROSS JOIN fence
    -- The row is replaced by the same part with later chunks, or by the first part of a higher
    -- attempt.
    ON CONFLICT (bucket, thread_id, message_id, first_chunk) DO UPDATE
    SET attempt = excluded.attempt, role = excluded.role, first_seq = excluded.first_seq, open_ms = excluded.open_ms,
        gap_ms = excluded.gap_ms, idle_ms = excluded.idle_ms, saved_at = excluded.saved_at,
        earlier_calls = excluded.earlier_calls, chunks = excluded.chunks
)
-- Inputs, each given once: $16 bucket, $17 thread, $18 turn, $19 agent, $20 run, $21 content, $22
-- metadata, $23 options, $24 origin, $25 actor, $26 stream_seq, $27 incarnation, $28 age in ms.
, inputs AS (
    INSERT INTO spilled_turns AS t (bucket, thread_id, turn_id, agent_id, run, content, metadata, options, origin, actor,
                                    stream_seq, incarnation, came_at)
    SELECT i.bucket, i.thread_id, i.turn_id, i.agent_id, i.run, i.content, i.metadata::jsonb, i.options::jsonb, i.origin::jsonb, i.actor,
           i.stream_seq, $27, clock_timestamp() - i.age_ms * interval '1 ms'
    FROM unnest($16::smallint[], $17::text[], $18::text[], $19::text[], $20::integer[], $21::text[], $22::text[], $23::text[],
                $24::text[], $25::text[], $26::bigint[], $28::bigint[])
         AS i (bucket, thread_id, turn_id, agent_id, run, content, metadata, options, origin, actor, stream_seq, age_ms)
    CROSS JOIN fence
    -- The stream sequence and the time of arrival keep their first values, so the input keeps its
    -- place in the queue.
    ON CONFLICT (bucket, thread_id, turn_id) DO UPDATE
    SET agent_id = excluded.agent_id, run = excluded.run, content = excluded.content, metadata = excluded.metadata,
        options = excluded.options, origin = excluded.origin, actor = excluded.actor
)
SELECT EXISTS (SELECT FROM fence) AS is_owner, (SELECT saves FROM counted) AS saves
