-- $1 the key, $2 the digest of its new secret, $3 for how long the present secret stays valid; $4
-- to $8: the audit entry.
-- Returns no row when the key has ended, or when three secrets would be valid.
WITH rotated AS (
    UPDATE api_keys
    SET digest = $2,
        rotated_at = clock_timestamp(),
        previous_digest = CASE WHEN $3 > interval '0' THEN digest END,
        previous_valid_until = CASE WHEN $3 > interval '0' THEN clock_timestamp() + $3 END
    WHERE key_id = $1 AND revoked_at IS NULL AND coalesce(expires_at > clock_timestamp(), true)
      AND ($3 = interval '0' OR coalesce(previous_valid_until <= clock_timestamp(), true))
    RETURNING key_id
)
INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, detail)
SELECT $4, $5, $6, $7, 'rotate_key', key_id, $8 FROM rotated
RETURNING true
