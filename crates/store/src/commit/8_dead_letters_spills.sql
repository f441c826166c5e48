-- $1 commit, $2 bucket, $3 kind, $4 key, $5 partition, $6 stream_seq, $7 subject, $8 thread, $9
-- message, $10 attempt, $11 reason, $12 detail, $13 raw, $14 bucket of the thread or agent that the
-- dead letter belongs to, as far as the subject names one.
, letters AS (
    INSERT INTO dead_letters (bucket, kind, key, partition_id, stream_seq, subject, thread_id, message_id, attempt,
                              reason, detail, raw)
    SELECT i.bucket, i.kind,
           -- A stream that lost its end assigns the same sequences again: a different entry with
           -- the same sequence is another dead letter.
           CASE WHEN i.kind = 'entry'
                     AND EXISTS (SELECT FROM dead_letters AS d
                                 WHERE d.bucket = i.bucket AND d.kind = i.kind AND d.key = i.key AND d.raw <> i.raw
                                 OFFSET 0)
                THEN i.key || ':' || md5(i.raw) ELSE i.key END,
           i.partition_id, i.stream_seq, i.subject, i.thread_id, i.message_id, i.attempt,
           i.reason, i.detail::jsonb, i.raw
    FROM unnest($1::bigint[], $2::smallint[], $3::text[], $4::text[], $5::smallint[], $6::bigint[], $7::text[],
                $8::text[], $9::text[], $10::bigint[], $11::text[], $12::text[], $13::bytea[], $14::smallint[])
         AS i (number, bucket, kind, key, partition_id, stream_seq, subject, thread_id, message_id, attempt,
               reason, detail, raw, owner_bucket)
    JOIN fence USING (number)
    CROSS JOIN LATERAL (SELECT antiphon_dead_letter_owner(i.thread_id, i.subject) AS id OFFSET 0) AS w
    -- An unreadable entry was not checked earlier, so this checks it: of an erased thread or tenant
    -- nothing is kept.
    WHERE NOT EXISTS (SELECT FROM erased_threads AS e
                      WHERE e.bucket = i.owner_bucket AND e.thread_id = w.id AND e.recreated_at IS NULL OFFSET 0)
      AND NOT EXISTS (SELECT FROM erased_tenants AS z WHERE z.tenant = antiphon_tenant_of(w.id) OFFSET 0)
    ON CONFLICT (bucket, kind, key) DO NOTHING
)
-- Saved messages that have ended: $15 commit, $16 bucket, $17 thread, $18 message.
, ended AS (
    DELETE FROM spilled_messages AS s
    USING unnest($15::bigint[], $16::smallint[], $17::text[], $18::text[]) AS i (number, bucket, thread_id, message_id)
    JOIN fence USING (number)
    WHERE s.bucket = i.bucket AND s.thread_id = i.thread_id AND s.message_id = i.message_id
)
-- Messages that failed: $19 commit, $20 bucket, $21 thread, $22 position, $23 message, $24 attempt,
-- $25 role, $26 batch_type, $27 code, $28 text, $29 missing, $30 is_retryable.
, failed_ends AS (
    INSERT INTO failed_messages (bucket, thread_id, position, message_id, attempt, role, batch_type, code, text, missing,
                                 is_retryable)
    SELECT i.bucket, i.thread_id, i.position, i.message_id, i.attempt, i.role, i.batch_type, i.code, i.text,
           i.missing::jsonb, i.is_retryable
    FROM unnest($19::bigint[], $20::smallint[], $21::text[], $22::bigint[], $23::text[], $24::bigint[], $25::text[],
                $26::text[], $27::text[], $28::text[], $29::text[], $30::boolean[])
         AS i (number, bucket, thread_id, position, message_id, attempt, role, batch_type, code, text, missing,
               is_retryable)
    JOIN fence USING (number)
    -- The first failure stays, because subscribers have already received it.
    ON CONFLICT DO NOTHING
)
