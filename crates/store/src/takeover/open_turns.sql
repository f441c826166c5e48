-- $1 buckets, $2 incarnation of the stream. What came in an earlier stream came before all that came in this one.
SELECT o.*
FROM unnest($1::smallint[]) AS b (bucket)
JOIN open_turns AS o ON o.bucket = b.bucket
ORDER BY o.incarnation = $2, CASE WHEN o.incarnation <> $2 THEN o.saved_at END, o.stream_seq
