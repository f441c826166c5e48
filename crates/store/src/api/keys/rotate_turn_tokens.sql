-- $1 whether tokens of the current key stay valid, $2 for how long; $3 to $8: the audit entry.
-- Returns no row when tokens of the previous key are still valid.
WITH rotated AS (
    UPDATE installation
    SET previous_token_key = CASE WHEN $1 THEN token_key END,
        token_key = sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')),
        token_key_version = token_key_version + 1,
        token_key_changed_at = clock_timestamp()
    WHERE NOT ($1 AND previous_token_key IS NOT NULL AND token_key_changed_at > clock_timestamp() - $2)
    RETURNING single
), logged AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, detail)
    SELECT $3, $4, $5, $6, 'rotate_key', $7, $8 FROM rotated
)
SELECT single FROM rotated
