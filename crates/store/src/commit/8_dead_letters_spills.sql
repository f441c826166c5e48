-- $1 commit, $2 bucket, $3 kind, $4 key, $5 partition, $6 stream_seq, $7 subject, $8 thread, $9 message,
-- $10 attempt, $11 reason, $12 detail, $13 raw.
, letters AS (
    INSERT INTO dead_letters (bucket, kind, key, partition_id, stream_seq, subject, thread_id, message_id, attempt,
                              reason, detail, raw)
    SELECT i.bucket, i.kind,
           -- A stream that lost its end gives its sequences out again: another entry under the same one is another letter.
           CASE WHEN i.kind = 'entry'
                     AND EXISTS (SELECT FROM dead_letters AS d
                                 WHERE d.bucket = i.bucket AND d.kind = i.kind AND d.key = i.key AND d.raw <> i.raw
                                 OFFSET 0)
                THEN i.key || ':' || md5(i.raw) ELSE i.key END,
           i.partition_id, i.stream_seq, i.subject, i.thread_id, i.message_id, i.attempt,
           i.reason, i.detail::jsonb, i.raw
    FROM unnest($1::bigint[], $2::smallint[], $3::text[], $4::text[], $5::smallint[], $6::bigint[], $7::text[],
                $8::text[], $9::text[], $10::bigint[], $11::text[], $12::text[], $13::bytea[])
         AS i (number, bucket, kind, key, partition_id, stream_seq, subject, thread_id, message_id, attempt,
               reason, detail, raw)
    JOIN fence USING (number)
    CROSS JOIN LATERAL (SELECT antiphon_dead_letter_owner(i.thread_id, i.subject) AS id OFFSET 0) AS w
    -- What cannot be read was not looked up before it came here: nothing is kept of a thread or a tenant that was erased.
    WHERE NOT EXISTS (SELECT FROM erased_threads AS e
                      WHERE e.bucket = i.bucket AND e.thread_id = w.id AND e.recreated_at IS NULL OFFSET 0)
      AND NOT EXISTS (SELECT FROM erased_tenants AS z WHERE z.tenant = antiphon_tenant_of(w.id) OFFSET 0)
    ON CONFLICT (bucket, kind, key) DO NOTHING
)
-- Saves: $14 commit, $15 bucket, $16 thread, $17 message, $18 attempt, $19 role, $20 first_seq, $21 open_ms, $22 gap_ms,
-- $23 idle_ms, $24 earlier_calls.
, saves AS MATERIALIZED (
    -- `chunks`: how many of this attempt are saved already.
    SELECT i.*, CASE WHEN s.attempt = i.attempt THEN s.chunks ELSE 0 END AS chunks
    FROM unnest($14::bigint[], $15::smallint[], $16::text[], $17::text[], $18::bigint[], $19::text[], $20::bigint[],
                $21::bigint[], $22::bigint[], $23::bigint[], $24::text[])
         WITH ORDINALITY
         AS i (number, bucket, thread_id, message_id, attempt, role, first_seq, open_ms, gap_ms, idle_ms, earlier_calls, save)
    JOIN fence USING (number)
    LEFT JOIN spilled_messages AS s
        ON s.bucket = i.bucket AND s.thread_id = i.thread_id AND s.message_id = i.message_id
    WHERE s.attempt IS NULL OR s.attempt <= i.attempt
)
-- Their chunks: $25 number of the save (from 1), $26 arrival within it, $27 chunk_id, $28 chunk, $29 chunk_type,
-- $30 is_final, $31 metadata, $32 timestamp, $33 correlation_id.
, new_chunks AS MATERIALIZED (
    -- Counted without those that are saved already, so that the next save goes on where this one ends.
    SELECT DISTINCT ON (i.save, i.chunk_id) i.*, s.bucket, s.thread_id, s.message_id, s.attempt, s.chunks
    FROM unnest($25::bigint[], $26::integer[], $27::integer[], $28::text[], $29::text[], $30::boolean[], $31::text[],
                $32::text[], $33::text[])
         AS i (save, arrival, chunk_id, chunk, chunk_type, is_final, metadata, "timestamp", correlation_id)
    JOIN saves AS s USING (save)
    WHERE NOT EXISTS (
        SELECT FROM spilled_chunks AS c
        WHERE c.bucket = s.bucket AND c.thread_id = s.thread_id AND c.message_id = s.message_id
          AND c.attempt = s.attempt AND c.chunk_id = i.chunk_id
        OFFSET 0
    )
    ORDER BY i.save, i.chunk_id, i.arrival
)
, saved_chunks AS (
    INSERT INTO spilled_chunks (bucket, thread_id, message_id, attempt, chunk_id, arrival, chunk, chunk_type, is_final,
                                  metadata, "timestamp", correlation_id)
    SELECT n.bucket, n.thread_id, n.message_id, n.attempt, n.chunk_id,
           n.chunks + row_number() OVER (PARTITION BY n.save ORDER BY n.arrival) - 1,
           n.chunk, n.chunk_type, n.is_final, n.metadata::jsonb, n."timestamp", n.correlation_id
    FROM new_chunks AS n
    ON CONFLICT DO NOTHING
    RETURNING bucket, thread_id, message_id
)
, saved AS (
    INSERT INTO spilled_messages AS t (bucket, thread_id, message_id, attempt, role, first_seq, open_ms, gap_ms, idle_ms, earlier_calls,
                                       chunks)
    SELECT s.bucket, s.thread_id, s.message_id, s.attempt, s.role, s.first_seq, s.open_ms, s.gap_ms, s.idle_ms,
           s.earlier_calls::jsonb,
           s.chunks + (SELECT count(*) FROM saved_chunks AS c
                       WHERE c.bucket = s.bucket AND c.thread_id = s.thread_id AND c.message_id = s.message_id)
    FROM saves AS s
    ON CONFLICT (bucket, thread_id, message_id) DO UPDATE
    SET attempt = excluded.attempt, role = excluded.role, first_seq = excluded.first_seq, open_ms = excluded.open_ms,
        gap_ms = excluded.gap_ms, idle_ms = excluded.idle_ms, saved_at = excluded.saved_at,
        earlier_calls = excluded.earlier_calls, chunks = excluded.chunks
)
-- The parts of one statement do not see each other's rows, and none may touch a row that another one touches: these
-- are chunks of lower attempts, those above are of the attempt itself, and what ends is never saved in one commit.
, reset AS (
    DELETE FROM spilled_chunks AS c USING saves AS s
    WHERE c.bucket = s.bucket AND c.thread_id = s.thread_id AND c.message_id = s.message_id AND c.attempt < s.attempt
)
-- Ended: $34 commit, $35 bucket, $36 thread, $37 message.
, ended AS MATERIALIZED (
    SELECT i.bucket, i.thread_id, i.message_id
    FROM unnest($34::bigint[], $35::smallint[], $36::text[], $37::text[]) AS i (number, bucket, thread_id, message_id)
    JOIN fence USING (number)
)
, ended_stragglers AS (
    DELETE FROM spilled_messages AS s USING ended AS e
    WHERE s.bucket = e.bucket AND s.thread_id = e.thread_id AND s.message_id = e.message_id
)
, ended_chunks AS (
    DELETE FROM spilled_chunks AS c USING ended AS e
    WHERE c.bucket = e.bucket AND c.thread_id = e.thread_id AND c.message_id = e.message_id
)
-- Failed: $38 commit, $39 bucket, $40 thread, $41 position, $42 message, $43 attempt, $44 role, $45 batch_type, $46 code, $47 text,
-- $48 missing, $49 is_retryable.
, failed_ends AS (
    INSERT INTO failed_messages (bucket, thread_id, position, message_id, attempt, role, batch_type, code, text, missing,
                                 is_retryable)
    SELECT i.bucket, i.thread_id, i.position, i.message_id, i.attempt, i.role, i.batch_type, i.code, i.text,
           i.missing::jsonb, i.is_retryable
    FROM unnest($38::bigint[], $39::smallint[], $40::text[], $41::bigint[], $42::text[], $43::bigint[], $44::text[],
                $45::text[], $46::text[], $47::text[], $48::text[], $49::boolean[])
         AS i (number, bucket, thread_id, position, message_id, attempt, role, batch_type, code, text, missing,
               is_retryable)
    JOIN fence USING (number)
    -- What failed once has been told so.
    ON CONFLICT DO NOTHING
)
