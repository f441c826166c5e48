-- The batch that the metadata of a message names as the one around its own; NULL where it names none.
CREATE FUNCTION antiphon_parent_batch(metadata jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN jsonb_typeof(metadata -> 'parent_batch') = 'string' AND metadata ->> 'parent_batch' ~ '^[1-9][0-9]{0,18}$'
                THEN CASE WHEN (metadata ->> 'parent_batch')::numeric <= 9223372036854775807
                          THEN (metadata ->> 'parent_batch')::bigint END END
$$;

-- What the function says of the row, for messages that are written from now on. A column, because row security lets no index be searched by an
-- expression over metadata; not a generated one, which would rewrite the table while no process can use it. NULL, in all but a few messages, takes no room.
ALTER TABLE messages ADD COLUMN parent_batch bigint;

-- Serves lists of the batches within a batch.
CREATE INDEX messages_parent_batch ON messages (bucket, thread_id, parent_batch, batch_id) WHERE parent_batch IS NOT NULL;
