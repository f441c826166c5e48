-- $1 reason or NULL; $2 bucket, $3 kind, $4 key and $5 microseconds of the last dead letter of the
-- previous page, or NULL; $6 how many; $7 only this tenant ('-': the default tenant) or NULL.
SELECT d.*, antiphon_dead_letter_owner(d.thread_id, d.subject) AS owner,
       (extract(epoch FROM d.created_at) * 1000000)::bigint AS created_us,
       (extract(epoch FROM d.replayed_at) * 1000)::bigint AS replayed_ms
FROM dead_letters AS d
WHERE ($1::text IS NULL OR d.reason = $1)
  AND ($7::text IS NULL OR antiphon_tenant_of(coalesce(antiphon_dead_letter_owner(d.thread_id, d.subject), '')) = $7)
  AND ($5::bigint IS NULL OR (d.created_at, d.bucket, d.kind, d.key)
                             < (timestamptz 'epoch' + $5 * interval '1 microsecond', $2::smallint, $3::text, $4::text))
ORDER BY d.created_at DESC, d.bucket DESC, d.kind DESC, d.key DESC
LIMIT $6
