-- $1 bucket, $2 session; $3 newest layer and $4 last number when the session was read; $5 replaced,
-- $6 shown, $7 summary, $8 its characters, $9 true if it belongs to the temp layer, $10 characters
-- of what is replaced, $11 token, $12 request id, $13 its digest, $14 actor. Writes one layer if
-- the session has not changed since it was read, otherwise none.
WITH taken AS (
    UPDATE reasoning_sessions
    SET last_number = last_number + 1, last_layer = last_layer + 1, head_layer = last_layer + 1, changed_at = clock_timestamp()
    WHERE bucket = $1 AND session_id = $2 AND head_layer = $3 AND last_number = $4
    RETURNING last_number, head_layer
)
, summary AS (
    INSERT INTO reasoning_messages (bucket, session_id, number, in_temp, role, content, chars)
    SELECT $1, $2, last_number, $9, 'summary', $7, $8 FROM taken
)
, layer AS (
    INSERT INTO reasoning_layers (bucket, session_id, layer_id, previous_id, replaced, first_number, last_number, summary_number,
                                  shown, chars, token, request_id, request_hash, actor)
    SELECT $1, $2, head_layer, $3, $5::bigint[], (SELECT min(n) FROM unnest($5::bigint[]) AS n),
           (SELECT max(n) FROM unnest($5::bigint[]) AS n), last_number, $6::bigint[], $10, $11, $12, $13, $14
    FROM taken
)
, audited AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target)
    SELECT $1, $2 || '+reasoning', gen_random_uuid()::text, $14, 'reasoning_compress', 'rm-' || last_number FROM taken
)
SELECT head_layer, last_number FROM taken
