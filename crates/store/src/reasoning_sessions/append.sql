-- $1 bucket, $2 session, $3 how many, $4 calls that are answered, $5 calls that are made, $6 calls
-- that wait afterwards, $7 the highest number, $8 request id, $9 its digest; arrays, one item per
-- message: $10 role, $11 content, $12 characters, $13 thinking, $14 calls, $15 call that is
-- answered, $16 tool, $17 signature, $18 details of calls. Numbers are assigned while the row of
-- the session is locked, so concurrent appends leave no gaps.
WITH earlier AS (
    SELECT number, request_hash FROM reasoning_messages WHERE bucket = $1 AND session_id = $2 AND request_id = $8
)
, taken AS (
    UPDATE reasoning_sessions AS s
    SET last_number = s.last_number + $3, changed_at = clock_timestamp(),
        waiting_calls = ARRAY(SELECT unnest(s.waiting_calls) EXCEPT SELECT unnest($4::text[])) || $6::text[]
    WHERE s.bucket = $1 AND s.session_id = $2 AND s.waiting_calls @> $4::text[] AND NOT s.waiting_calls && $5::text[]
      AND s.last_number + $3 <= $7 AND s.sealed_number >= 0 AND NOT EXISTS (SELECT FROM earlier)
    RETURNING s.last_number - $3 AS before
)
, added AS (
    INSERT INTO reasoning_messages (bucket, session_id, number, in_temp, role, content, chars, thinking, calls, answers, tool, signature,
                                    call_details, request_id, request_hash)
    SELECT $1, $2, t.before + n.place, true, n.role, n.content, n.chars, n.thinking, n.calls::jsonb, n.answers, n.tool, n.signature,
           n.details::jsonb,
           CASE n.place WHEN 1 THEN $8 END, CASE n.place WHEN 1 THEN $9 END
    FROM taken AS t, unnest($10::text[], $11::text[], $12::integer[], $13::text[], $14::text[], $15::text[], $16::text[],
                           $17::text[], $18::text[])
        WITH ORDINALITY AS n (role, content, chars, thinking, calls, answers, tool, signature, details, place)
)
SELECT s.waiting_calls, s.last_number, s.sealed_number, (SELECT before FROM taken) AS before,
       e.number AS earlier, e.request_hash AS earlier_hash
FROM reasoning_sessions AS s LEFT JOIN earlier AS e ON true
WHERE s.bucket = $1 AND s.session_id = $2
  -- A negative number marks a session that is still being imported.
  AND s.sealed_number >= 0
