-- What the owners of partitions keep between two commits: open messages and turns that are spilled, what is still to be published,
-- and what could not be used.

-- Parts of open messages whose entries a new owner would otherwise have to read again from far back. They are written beside the commits,
-- and deleted by the commit of the message's end.
CREATE TABLE spilled_messages (
    bucket      smallint    NOT NULL,
    thread_id   text        NOT NULL,
    message_id  text        NOT NULL,
    -- The chunks below this id are in other rows of the message. Only rows of its highest attempt count.
    first_chunk integer     NOT NULL,
    attempt     bigint      NOT NULL,
    role        text        NOT NULL,
    first_seq   bigint      NOT NULL,
    -- Ages in milliseconds at `saved_at`, and not instants: clocks of different machines do not matter. A reader adds the database's
    -- now() - saved_at.
    open_ms     bigint      NOT NULL,
    gap_ms      bigint,
    idle_ms     bigint      NOT NULL,
    saved_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The calls of models that attempts before this one have made, as chunks list them; NULL: none. What they have used was paid for, so
    -- that the ledger needs it when the answer ends, also under another owner of the partition.
    earlier_calls jsonb,
    -- A JSON array of chunks. bytea, because nothing in it may be refused: its entries are purged from the stream.
    chunks      bytea       NOT NULL,
    PRIMARY KEY (bucket, thread_id, message_id, first_chunk)
);

-- How many saves of its owners each partition has had: a part of what the fence compares, as `partitions.commits` is. A row of its own, and
-- not a column there, because saves and commits do not wait for each other. No row: none yet.
CREATE TABLE partition_saves (
    partition_id smallint PRIMARY KEY,
    saves        bigint   NOT NULL
) WITH (
    -- A few hot rows: room for the new versions on the same page.
    fillfactor = 50
);

-- Inputs that wait or run, and whose entries a new owner would otherwise have to read again from far back.
CREATE TABLE spilled_turns (
    bucket         smallint    NOT NULL,
    thread_id      text        NOT NULL,
    turn_id        text        NOT NULL,
    agent_id       text        NOT NULL,
    run            integer     NOT NULL,
    content        text        NOT NULL,
    metadata       jsonb       NOT NULL,
    -- How the turn is to be run: busy policy, follow-ups, what the client asks of the model. A retry asks for the same.
    options        jsonb       NOT NULL DEFAULT '{}',
    actor          text,
    -- The entry in the stream: the order in which inputs wait.
    stream_seq     bigint      NOT NULL,
    -- Which stream that counts in: inputs of an earlier stream, '' say, come before all of the present one, in the order of saved_at.
    incarnation    text        NOT NULL,
    saved_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, thread_id, turn_id)
);

-- What is published after a commit: one row a commit, deleted once all of it has been published. The bucket is the number of
-- the partition, which belongs to that partition for as long as there is one of that number.
CREATE TABLE outbox (
    bucket     smallint    NOT NULL,
    position   bigint      NOT NULL,
    entries    jsonb       NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, position)
) WITH (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- Rejected entries and failed messages, kept for operators. Written in the statement that passes them.
CREATE TABLE dead_letters (
    -- Of the thread for kind 'message'. For kind 'entry' the number of the partition: an entry that could not be read
    -- has no thread, and bucket p belongs to partition p.
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
    -- A replay is about to put the payload into the stream again,
    claimed_at   timestamptz,
    -- and has done so, once.
    replayed_at  timestamptz,
    PRIMARY KEY (bucket, kind, key)
);

-- Read by pages, the newest first, and deleted by age.
CREATE INDEX dead_letters_created_at ON dead_letters (created_at, bucket, kind, key);

-- The thread or agent that a dead letter belongs to; for an entry that could not be read it is in the subject. NULL: unknown.
CREATE FUNCTION antiphon_dead_letter_owner(thread_id text, subject text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN coalesce(thread_id,
                    substring(subject FROM '^(?:chunks|commands|messages|tasks)[.](?:[0-9]+[.])?((?:[a-z0-9][a-z0-9-]*~)?[A-Za-z0-9_-]+)(?:[+][a-z_]+)?$'));

-- Texts of tens of kilobytes are common, and the owner of a partition waits while they are compressed. The default, pglz, costs several
-- times the processor time of lz4 for about the same size. A server built without lz4 stores them as they are, which costs space
-- and WAL but no time of its own.
DO $$
DECLARE
    wide CONSTANT text[][] := ARRAY[['messages', 'content'], ['tasks', 'content'], ['outbox', 'entries'], ['spilled_messages', 'chunks']];
    entry text[];
BEGIN
    FOREACH entry SLICE 1 IN ARRAY wide LOOP
        BEGIN
            EXECUTE format('ALTER TABLE %I ALTER COLUMN %I SET COMPRESSION lz4', entry[1], entry[2]);
        EXCEPTION
            WHEN feature_not_supported OR invalid_parameter_value THEN
                EXECUTE format('ALTER TABLE %I ALTER COLUMN %I SET STORAGE EXTERNAL', entry[1], entry[2]);
        END;
    END LOOP;
END
$$;
