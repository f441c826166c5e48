-- How messages failed, for clients who were away: with the messages themselves, all ends of a thread in the order in which they were told.
-- Written in the commit that ends the message.
CREATE TABLE failed_messages (
    bucket       smallint    NOT NULL,
    thread_id    text        NOT NULL,
    -- Its place among the ends of the thread. No message has it.
    position     bigint      NOT NULL,
    message_id   text        NOT NULL,
    attempt      bigint      NOT NULL,
    role         text        NOT NULL,
    batch_type   text        NOT NULL,
    -- What clients are told: a code, a text, and for a gap the chunks that never came as [{"first": …, "last": …}, …].
    code         text        NOT NULL,
    text         text        NOT NULL,
    missing      jsonb       NOT NULL DEFAULT '[]',
    is_retryable boolean     NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, thread_id, position),
    UNIQUE (bucket, message_id, thread_id)
);

-- They go when they are old.
CREATE INDEX failed_messages_created_at ON failed_messages (created_at);

ALTER TABLE failed_messages ENABLE ROW LEVEL SECURITY;
ALTER TABLE failed_messages FORCE ROW LEVEL SECURITY;
CREATE POLICY tenants ON failed_messages USING (antiphon_sees(thread_id)) WITH CHECK (antiphon_sees(thread_id));
