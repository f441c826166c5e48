-- $1 whether tickets of the current key stay valid, $2 for how long; $3 to $8: the audit entry.
-- Returns no row when tickets of the previous key are still valid.
WITH rotated AS (
    UPDATE installation
    SET previous_ticket_key = CASE WHEN $1 THEN ticket_key END,
        ticket_key = sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')),
        -- Without an overlap no previous key is left that could sign in the meantime.
        ticket_key_changed_at = CASE WHEN $1 THEN clock_timestamp() END
    WHERE NOT ($1 AND previous_ticket_key IS NOT NULL AND ticket_key_changed_at > clock_timestamp() - $2)
    RETURNING single
), logged AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, detail)
    SELECT $3, $4, $5, $6, 'rotate_key', $7, $8 FROM rotated
)
SELECT single FROM rotated
