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

-- What calls of language models have used: one row a call whose end is known, written in the commit that ends its turn, whatever became
-- of the turn. Insert-only.
CREATE TABLE usage (
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    input_tokens     bigint      NOT NULL CHECK (input_tokens >= 0),
    output_tokens    bigint      NOT NULL CHECK (output_tokens >= 0),
    bucket           smallint    NOT NULL,
    -- Number of the call among those of the answer, from 0.
    call             smallint    NOT NULL,
    -- The answer did not come to its end: there may have been more calls than are known.
    is_partial       boolean     NOT NULL,
    thread_id        text        NOT NULL,
    -- The answer, whose id names the turn and its run; of a turn that failed or was taken back, what would have been it.
    message_id       text        NOT NULL,
    agent_id         text        NOT NULL,
    kind             text        NOT NULL CHECK (kind IN ('turn', 'follow_up', 'summary', 'memory')),
    -- NULL: not said.
    model            text,
    -- Parts of the two above. NULL: not said, which is not zero and takes no room.
    cached_tokens    bigint      CHECK (cached_tokens >= 0),
    reasoning_tokens bigint      CHECK (reasoning_tokens >= 0),
    PRIMARY KEY (bucket, thread_id, message_id, call)
) WITH (
    autovacuum_vacuum_insert_scale_factor = 0.05
);

-- Read and rolled up by time. Rows are written in the order of time, so ranges of pages are enough, and cost a write nothing. Ranges are added by
-- autovacuum as they fill: without that all that has come since the last vacuum would be read for the calls of the last minute.
CREATE INDEX usage_created_at ON usage USING brin (created_at) WITH (pages_per_range = 32, autosummarize = on);

-- What calls of days long ago have used: a sum for each day, tenant, agent, kind and model, into which the rows of `usage` go. Without
-- threads, and so without users: a sum has no part of a person that erasing would have to take out again, and there are few of them, so
-- that they need no end. Without a bucket: sums of several databases can be added.
CREATE TABLE usage_days (
    -- The day's start in UTC. The price of that time is that of all its calls.
    day_at              timestamptz NOT NULL,
    calls               bigint      NOT NULL,
    partial_calls       bigint      NOT NULL,
    input_tokens        bigint      NOT NULL,
    output_tokens       bigint      NOT NULL,
    -- As calls said it; what they did not say counts as none.
    cached_tokens       bigint      NOT NULL,
    -- What of it has the price of cached input: of no call more than its input.
    cached_input_tokens bigint      NOT NULL,
    reasoning_tokens    bigint      NOT NULL,
    -- Of the threads; '-': the default one.
    tenant              text        NOT NULL,
    agent_id            text        NOT NULL,
    kind                text        NOT NULL,
    -- NULL: not said.
    model               text,
    UNIQUE NULLS NOT DISTINCT (day_at, tenant, agent_id, kind, model)
);
