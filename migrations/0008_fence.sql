-- The fence of a partition compares the history, and not only who owns it: a store that has gone back in time (a replica promoted too
-- early, a snapshot put back) knows the same owner, and yet less than the owner has been told.

-- How many writes of its owners were applied. Every write of an owner expects the number that it knows and adds one; every renewal
-- expects it as well.
ALTER TABLE partitions ADD COLUMN commits bigint NOT NULL DEFAULT 0;

-- The epoch of the next grant. By the clock (microseconds), so that a store that has gone back in time does not give an epoch out again
-- that was given out before, and one that is granted later is higher; by chance where the clock was set back.
CREATE FUNCTION antiphon_next_epoch(epoch bigint) RETURNS bigint
    LANGUAGE sql VOLATILE PARALLEL SAFE
    RETURN greatest(epoch + 1 + floor(random() * 1000)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);

-- The last entry that had been read when the newest commit was decided, and when the stream stored it (ns of Unix time): what the
-- stream must still have there. Above the checkpoint or at it. NULL: nothing is known of it.
ALTER TABLE partitions ADD COLUMN read_seq bigint NOT NULL DEFAULT 0;
ALTER TABLE partitions ADD COLUMN read_at_ns bigint;

-- What a store or a stream that went back in time has cost, or may have.
CREATE TABLE incidents (
    partition_id    smallint    NOT NULL,
    -- The stream that the sequences count in.
    incarnation     text        NOT NULL,
    -- The first sequence that it is about,
    first_seq       bigint      NOT NULL,
    kind            text        NOT NULL CHECK (kind IN ('store_stepped_back', 'stream_renewed', 'stream_parted', 'entries_gone')),
    -- and the last one; NULL: nobody knows how far the stream had come.
    last_seq        bigint,
    detail          text        NOT NULL,
    noticed_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Those that have cost nothing are acknowledged from the start, by 'antiphon'.
    acknowledged_at timestamptz,
    acknowledged_by text,
    PRIMARY KEY (partition_id, incarnation, first_seq, kind)
);

-- Owners ask for these with every renewal.
CREATE INDEX incidents_open ON incidents (partition_id) WHERE acknowledged_at IS NULL;

-- What no tenant has any business with.
ALTER TABLE incidents ENABLE ROW LEVEL SECURITY;
ALTER TABLE incidents FORCE ROW LEVEL SECURITY;
CREATE POLICY tenants ON incidents USING (current_setting('antiphon.tenant', true) = '*')
    WITH CHECK (current_setting('antiphon.tenant', true) = '*');
