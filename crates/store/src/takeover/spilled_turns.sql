-- $1 buckets, $2 incarnation of the stream. Entries of an earlier stream precede all entries of
-- this one. An input that a commit opened has the sequence of the last entry that had been read.
SELECT o.*, (extract(epoch FROM clock_timestamp() - coalesce(o.came_at, o.saved_at)) * 1000)::bigint AS age_ms
FROM unnest($1::smallint[]) AS b (bucket)
JOIN spilled_turns AS o ON o.bucket = b.bucket
WHERE NOT EXISTS (SELECT FROM erased_threads AS e
                  WHERE e.bucket = o.bucket AND e.thread_id = o.thread_id AND e.recreated_at IS NULL
                  OFFSET 0)
  AND NOT EXISTS (SELECT FROM erased_tenants AS z WHERE z.tenant = antiphon_tenant_of(o.thread_id) OFFSET 0)
ORDER BY o.incarnation = $2, CASE WHEN o.incarnation <> $2 THEN o.saved_at END, o.stream_seq, o.came_at
