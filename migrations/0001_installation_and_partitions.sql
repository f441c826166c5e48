-- The installation, its workers and partitions.
--
-- Rules of the whole schema: every row belongs to one bucket, and `bucket` leads its primary key (a partition's own rows use the
-- partition's number), so that buckets can be spread over several databases without a transaction that crosses them.
-- No extension, no trigger, no sequence in the hot path; PostgreSQL 15 to 18. Times are `clock_timestamp()` and not `now()`: a
-- statement that waited for its fence is stamped when it wrote.

-- One row, which all processes of an installation must agree on.
CREATE TABLE installation (
    single     boolean     PRIMARY KEY DEFAULT true CHECK (single),
    -- Keys are in streams by bucket mod this number: it is changed together with the streams, by `antiphon partitions change` alone.
    partitions integer     NOT NULL CHECK (partitions BETWEEN 1 AND 1024 AND partitions & (partitions - 1) = 0),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The key of turn tokens (HMAC-SHA256). It is made here and never sent anywhere. sha256 over random UUIDs: the server's own
    -- strong random source without an extension.
    token_key  bytea       NOT NULL
        DEFAULT sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8'))
        CHECK (length(token_key) = 32)
);

-- A change of the number of partitions that is under way: at most one row. While it is there no worker owns a partition.
CREATE TABLE partition_change (
    single            boolean     PRIMARY KEY DEFAULT true CHECK (single),
    from_count        integer     NOT NULL,
    to_count          integer     NOT NULL CHECK (to_count <> from_count),
    -- How the streams were set up before it, and will be after it: in between they take whatever is moved.
    replicas          smallint    NOT NULL,
    max_bytes         bigint      NOT NULL,
    max_message_bytes integer     NOT NULL,
    -- The last sequence of each stream before anything was moved, by partition, and from then on where the moved entries begin. NULL: the
    -- streams are not closed to publishers yet.
    ends              bigint[],
    -- The rows of partitions are those of the new number: what is left is to open the streams.
    is_moved          boolean     NOT NULL DEFAULT false,
    started_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Live workers. They divide the partitions fairly; safety comes from the epochs alone.
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
    -- Highest millisecond used in a position; the next owner starts above it, whatever its clock shows.
    position_ms  bigint      NOT NULL DEFAULT 0,
    updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- How many writes of its owners were applied. Every write of an owner expects the number that it knows and adds one; every
    -- renewal expects it as well. So the fence compares the history and not only the owner: a database that has gone back in time
    -- (a replica promoted too early, a restored snapshot) has the same owner, but fewer commits than the owner knows of.
    commits      bigint      NOT NULL DEFAULT 0,
    -- The last entry that had been read when the newest commit was decided, and when the stream stored it (ns of Unix time): what
    -- the stream must still have there. At the checkpoint or above it. NULL: unknown.
    read_seq     bigint      NOT NULL DEFAULT 0,
    read_at_ns   bigint,
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

-- The epoch of the next grant. By the clock (microseconds), so that a database that has gone back in time does not give out an epoch
-- a second time; with a random step for the case that the clock was set back.
CREATE FUNCTION antiphon_next_epoch(epoch bigint) RETURNS bigint
    LANGUAGE sql VOLATILE PARALLEL SAFE
    RETURN greatest(epoch + 1 + floor(random() * 1000)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);

-- What a database or a stream that went back in time has cost, or may have.
CREATE TABLE incidents (
    partition_id    smallint    NOT NULL,
    -- The stream that the sequences count in.
    incarnation     text        NOT NULL,
    -- The first sequence that is affected,
    first_seq       bigint      NOT NULL,
    kind            text        NOT NULL CHECK (kind IN ('store_stepped_back', 'stream_renewed', 'stream_parted', 'entries_gone')),
    -- and the last one; NULL: unknown, as how far the stream had come is.
    last_seq        bigint,
    detail          text        NOT NULL,
    detected_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Those without a cost are acknowledged from the start, by 'antiphon'.
    acknowledged_at timestamptz,
    acknowledged_by text,
    PRIMARY KEY (partition_id, incarnation, first_seq, kind)
);

-- Owners read these with every renewal.
CREATE INDEX incidents_open ON incidents (partition_id) WHERE acknowledged_at IS NULL;
