-- What a message of a reasoning session has beside its text: kept as it came, and read with one message only, so that views cost what they cost.
ALTER TABLE reasoning_messages
    -- What the provider signed the thinking with.
    ADD COLUMN signature    text,
    -- [{"arguments", "signature"}], one for each of the calls; NULL: none has either.
    ADD COLUMN call_details jsonb;

ALTER TABLE reasoning_sessions
    -- Of the request that made the session, and a digest of what was asked for: sent again, it finds the session that it has made.
    ADD COLUMN request_id   text,
    ADD COLUMN request_hash text,
    -- The thread whose contexts show what the session shows of it, if any.
    ADD COLUMN applies_to   text;

DO $$
BEGIN
    ALTER TABLE reasoning_messages ALTER COLUMN call_details SET COMPRESSION lz4;
EXCEPTION
    WHEN feature_not_supported OR invalid_parameter_value THEN
        NULL;
END
$$;
