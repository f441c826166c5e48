-- Names the installation. Its streams bear the same id in their metadata, so that a fleet never reads or writes those of another one that shares
-- its NATS account. A dump keeps it: a restored database finds its own streams.
ALTER TABLE installation
    ADD COLUMN installation_id text NOT NULL DEFAULT gen_random_uuid()::text
        CHECK (installation_id ~ '^[A-Za-z0-9_-]{1,64}$');
