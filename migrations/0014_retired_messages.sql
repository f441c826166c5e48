-- Messages that retention has deleted: what comes for them again, from the stream or from a publisher, is known to have ended.
CREATE TABLE retired_messages (
    bucket     smallint    NOT NULL,
    message_id text        NOT NULL,
    thread_id  text        NOT NULL,
    retired_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- In the order in which look-ups name them.
    PRIMARY KEY (bucket, message_id, thread_id)
);

-- They go when they are old.
CREATE INDEX retired_messages_retired_at ON retired_messages (retired_at);
-- Serves erasing.
CREATE INDEX retired_messages_thread ON retired_messages (bucket, thread_id);

ALTER TABLE retired_messages ENABLE ROW LEVEL SECURITY;
ALTER TABLE retired_messages FORCE ROW LEVEL SECURITY;
CREATE POLICY tenants ON retired_messages USING (antiphon_sees(thread_id)) WITH CHECK (antiphon_sees(thread_id));
