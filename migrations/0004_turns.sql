-- Inputs and their turns. A turn that succeeds leaves its messages only.

-- Inputs of people whose turn failed: kept, so that no prompt is lost. A retry that succeeds deletes the row.
CREATE TABLE failed_turns (
    bucket         smallint    NOT NULL,
    thread_id      text        NOT NULL,
    turn_id        text        NOT NULL,
    agent_id       text        NOT NULL,
    -- The run that failed, from 0.
    run            integer     NOT NULL,
    content        text        NOT NULL,
    metadata       jsonb       NOT NULL,
    -- How the turn is to be run: busy policy, follow-ups, what the client asks of the model. A retry asks for the same.
    options        jsonb       NOT NULL DEFAULT '{}',
    code           text        NOT NULL,
    text           text        NOT NULL,
    is_retryable   boolean     NOT NULL,
    failed_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The part of the answer that had arrived: shown with the failed turn, and in no history.
    partial        text        NOT NULL DEFAULT '',
    PRIMARY KEY (bucket, thread_id, turn_id)
);

-- Deleted by age.
CREATE INDEX failed_turns_failed_at ON failed_turns (failed_at);

-- The same key and the same payload name the same turn. Written by gateways, before the input is published.
CREATE TABLE idempotency_keys (
    bucket     smallint    NOT NULL,
    thread_id  text        NOT NULL,
    key        text        NOT NULL,
    digest     bytea       NOT NULL,
    turn_id    text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, thread_id, key)
);

-- Deleted by age.
CREATE INDEX idempotency_keys_created_at ON idempotency_keys (created_at);

-- What a client of the Responses protocol asked for with an input and gets again with its response, from any gateway. Written by
-- gateways before the input is published; without a row a response is shown with what is known otherwise.
CREATE TABLE responses (
    bucket               smallint    NOT NULL,
    thread_id            text        NOT NULL,
    turn_id              text        NOT NULL,
    model                text        NOT NULL,
    background           boolean     NOT NULL,
    previous_response_id text,
    metadata             jsonb       NOT NULL,
    created_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, thread_id, turn_id)
);

-- Deleted by age.
CREATE INDEX responses_created_at ON responses (created_at);
