-- The batch that the metadata of a message names as the one around its own. A column, because row security lets no index be searched by an
-- expression over metadata. NULL, in all but a few messages, takes no room.
ALTER TABLE messages ADD COLUMN parent_batch bigint GENERATED ALWAYS AS (
    CASE WHEN jsonb_typeof(metadata -> 'parent_batch') = 'string' AND metadata ->> 'parent_batch' ~ '^[1-9][0-9]{0,18}$'
         THEN CASE WHEN (metadata ->> 'parent_batch')::numeric <= 9223372036854775807
                   THEN (metadata ->> 'parent_batch')::bigint END END
) STORED;

-- Serves lists of the batches within a batch.
CREATE INDEX messages_parent_batch ON messages (bucket, thread_id, parent_batch, batch_id) WHERE parent_batch IS NOT NULL;
