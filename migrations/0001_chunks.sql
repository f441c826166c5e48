-- The chunk road: threads, their messages, and what the owners of partitions keep between two commits.
--
-- Rules of this schema: every row belongs to one bucket and `bucket` leads its primary key (a partition's own rows use the
-- partition number), so that buckets can be spread over several databases without a transaction that crosses them.
-- No extension, no trigger, no sequence in the hot path; PostgreSQL 15 to 18.

-- The one row that all processes of an installation must agree on.
CREATE TABLE fleet (
    single     boolean     PRIMARY KEY DEFAULT true CHECK (single),
    -- N. Fixed for ever: keys are in streams by bucket mod N, and another N would look for them elsewhere.
    partitions integer     NOT NULL CHECK (partitions BETWEEN 1 AND 1024 AND partitions & (partitions - 1) = 0),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Heartbeats. They divide the partitions fairly; safety comes from the epochs alone.
CREATE TABLE workers (
    worker_id   text        PRIMARY KEY,
    lease_until timestamptz NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

CREATE TABLE partitions (
    partition_id smallint    PRIMARY KEY,
    -- Rises with each grant; checked inside every commit.
    epoch        bigint      NOT NULL DEFAULT 0,
    owner        text,
    -- By the database's clock, so that no clock of a worker matters.
    lease_until  timestamptz,
    -- Stream sequence up to which nothing is needed again.
    checkpoint   bigint      NOT NULL DEFAULT 0,
    -- Which stream the checkpoint counts in: a re-created stream starts at 1 again.
    incarnation  text,
    -- Highest millisecond used in a position; the next owner starts above it, whatever its clock says.
    position_ms  bigint      NOT NULL DEFAULT 0,
    updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Not for look-ups. It makes the epoch part of a key, so that a grant takes the strongest row lock (FOR UPDATE) and
    -- waits even for readers that hold the row FOR KEY SHARE. Renewals and commits leave both columns alone: they stay
    -- heap-only updates.
    UNIQUE (partition_id, epoch)
) WITH (
    -- A few hot rows, updated by every commit: room for the new versions on the same page, and an eager vacuum.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE threads (
    bucket        smallint    NOT NULL,
    thread_id     text        NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Position of the last message: the predecessor of the next one. NULL while there is none.
    head_position bigint,
    message_count bigint      NOT NULL DEFAULT 0,
    PRIMARY KEY (bucket, thread_id)
) WITH (
    -- Updated with every message, no indexed column changes: heap-only updates need room on the page.
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE messages (
    bucket       smallint    NOT NULL,
    thread_id    text        NOT NULL,
    position     bigint      NOT NULL,
    message_id   text        NOT NULL,
    batch_id     bigint      NOT NULL,
    sequence_num integer     NOT NULL,
    batch_type   text        NOT NULL
        CHECK (batch_type IN ('user_request', 'agent_to_agent', 'system_trigger', 'continuation')),
    role         text        NOT NULL CHECK (role IN ('user', 'assistant', 'tool', 'system')),
    content      text        NOT NULL,
    tool_calls   jsonb,
    tool_call_id text,
    metadata     jsonb       NOT NULL DEFAULT '{}',
    token_count  bigint,
    -- Position of the predecessor in the thread: order never depends on timestamps.
    parent_id    bigint,
    attempt      bigint      NOT NULL DEFAULT 0,
    -- clock_timestamp() and not now(): a statement that waited for its fence is stamped when it wrote.
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Serves history, newest and oldest first.
    PRIMARY KEY (bucket, thread_id, position),
    -- Serves "once": look-ups, and the wall behind them. The message before the thread: who has only the id of an answer finds its
    -- thread by it.
    UNIQUE (bucket, message_id, thread_id)
) WITH (
    -- Insert-only: freeze early and in small pieces instead of all at once.
    autovacuum_vacuum_insert_scale_factor = 0.05
);

-- Answers of tens of kilobytes are common, and the owner of a partition waits while they are compressed. The default,
-- pglz, costs several times the processor time of lz4 for about the same size. A server built without lz4 stores
-- them as they are, which costs space and WAL but no time of its own.
DO $$
BEGIN
    ALTER TABLE messages ALTER COLUMN content SET COMPRESSION lz4;
EXCEPTION
    WHEN feature_not_supported OR invalid_parameter_value THEN
        ALTER TABLE messages ALTER COLUMN content SET STORAGE EXTERNAL;
END
$$;

-- Inputs given up on, kept for people. Written in the statement that passes them.
CREATE TABLE dead_letters (
    -- Of the thread for kind 'message'. For kind 'entry' the number of the partition: an entry that could not be read
    -- has no thread, and bucket p always belongs to partition p.
    bucket       smallint    NOT NULL,
    kind         text        NOT NULL CHECK (kind IN ('entry', 'message')),
    -- 'entry': '<incarnation>:<sequence>', so that a re-created stream does not collide. 'message': '<thread>/<message>'.
    key          text        NOT NULL,
    partition_id smallint    NOT NULL,
    stream_seq   bigint      NOT NULL,
    subject      text,
    thread_id    text,
    message_id   text,
    attempt      bigint,
    -- The code that metrics and clients carry.
    reason       text        NOT NULL,
    -- {"text": …} and, for a message with gaps, "missing": [{"first": …, "last": …}, …].
    detail       jsonb       NOT NULL,
    -- The payload as it came, or the accepted chunks of the message as a JSON array. bytea, because it may be the
    -- very thing that text and jsonb refuse.
    raw          bytea       NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, kind, key)
);

-- For operators: the newest first.
CREATE INDEX dead_letters_created_at ON dead_letters (created_at);

-- Messages open for so long that they are saved, so that the checkpoint can pass them.
CREATE TABLE stragglers (
    bucket     smallint    NOT NULL,
    thread_id  text        NOT NULL,
    message_id text        NOT NULL,
    attempt    bigint      NOT NULL,
    role       text        NOT NULL,
    first_seq  bigint      NOT NULL,
    -- Ages when saved, ms, and not instants: clocks of different machines do not matter. A reader adds the database's
    -- now() - saved_at.
    open_ms    bigint      NOT NULL,
    gap_ms     bigint,
    idle_ms    bigint      NOT NULL,
    saved_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- How many chunks are saved: where the next save goes on counting.
    chunks     integer     NOT NULL DEFAULT 0,
    PRIMARY KEY (bucket, thread_id, message_id)
);

CREATE TABLE straggler_chunks (
    bucket         smallint NOT NULL,
    thread_id      text     NOT NULL,
    message_id     text     NOT NULL,
    attempt        bigint   NOT NULL,
    chunk_id       integer  NOT NULL,
    -- Order of saving, which is the order of arrival.
    arrival        integer  NOT NULL,
    chunk          text     NOT NULL,
    chunk_type     text     NOT NULL,
    is_final       boolean  NOT NULL,
    metadata       jsonb    NOT NULL,
    "timestamp"    text,
    correlation_id text,
    -- No foreign key: both tables are written and emptied together, in one statement.
    PRIMARY KEY (bucket, thread_id, message_id, attempt, chunk_id)
);
