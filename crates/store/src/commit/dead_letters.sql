-- Dead letters. `owner_bucket` is the bucket of the thread or agent that the dead letter belongs
-- to, as far as the subject names one.
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
    FROM dead_letter_rows AS i
    CROSS JOIN LATERAL (SELECT antiphon_dead_letter_owner(i.thread_id, i.subject) AS id OFFSET 0) AS w
    -- An unreadable entry was not checked earlier, so this checks it: of an erased thread or tenant
    -- nothing is kept.
    WHERE NOT EXISTS (SELECT FROM erased_threads AS e
                      WHERE e.bucket = i.owner_bucket AND e.thread_id = w.id AND e.recreated_at IS NULL OFFSET 0)
      AND NOT EXISTS (SELECT FROM erased_tenants AS z WHERE z.tenant = antiphon_tenant_of(w.id) OFFSET 0)
    ON CONFLICT (bucket, kind, key) DO NOTHING
)
