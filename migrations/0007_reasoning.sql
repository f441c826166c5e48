-- Focused reasoning threads: sessions of agents over base messages, which are copied once and never change, and messages of their own.
-- Everything but the row of a session is insert-only, so that taking a compression back gives the same bytes again.

-- A row for each session: what numbers and layers were given, and which layer counts. Its row lock is what concurrent changes wait for.
CREATE TABLE reasoning_sessions (
    bucket         smallint    NOT NULL,
    session_id     text        NOT NULL,
    agent_id       text        NOT NULL,
    -- Where the base messages came from: [{"thread_id", "from_batch", "to_batch", "as_of"}].
    sources        jsonb       NOT NULL DEFAULT '[]',
    -- The threads whose erasing erases the session: those of the sources, and the agent's own.
    source_threads text[]      NOT NULL,
    -- The highest number that was given. Numbers are given once.
    last_number    bigint      NOT NULL DEFAULT 0,
    -- The newest layer that is not undone; 0: none.
    head_layer     bigint      NOT NULL DEFAULT 0,
    last_layer     bigint      NOT NULL DEFAULT 0,
    -- The messages up to this number are in blocks too.
    sealed_number  bigint      NOT NULL DEFAULT 0,
    -- Calls of the temp layer whose results have not come.
    waiting_calls  text[]      NOT NULL DEFAULT '{}',
    -- [{"text", "state"}], in order.
    plan           jsonb       NOT NULL DEFAULT '[]',
    created_by     text        NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Not indexed, so that an append changes no index.
    changed_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, session_id)
) WITH (fillfactor = 70);

CREATE INDEX reasoning_sessions_threads ON reasoning_sessions USING gin (source_threads);

CREATE TABLE reasoning_messages (
    bucket          smallint    NOT NULL,
    session_id      text        NOT NULL,
    number          bigint      NOT NULL CHECK (number > 0),
    -- Not of a base layer. A summary is when all that it replaced is.
    in_temp         boolean     NOT NULL,
    role            text        NOT NULL CHECK (role IN ('user', 'assistant', 'tool', 'system', 'summary')),
    content         text        NOT NULL,
    -- Characters of the content: views show the size of what they cut.
    chars           integer     NOT NULL,
    -- Has no number of its own.
    thinking        text,
    -- [{"id", "name"}]
    calls           jsonb,
    answers         text,
    tool            text,
    -- Of a base message: where it came from.
    source_thread   text,
    source_position bigint,
    -- Of the first message of an append that may be sent twice, and a digest of what was asked for.
    request_id      text,
    request_hash    text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, session_id, number),
    FOREIGN KEY (bucket, session_id) REFERENCES reasoning_sessions ON DELETE CASCADE
);

CREATE UNIQUE INDEX reasoning_messages_request ON reasoning_messages (bucket, session_id, request_id)
    WHERE request_id IS NOT NULL;

-- What views and compressions read of 256 messages in a row, in one row: 10,000 rows take longer to read than what is in them to render.
-- Made of reasoning_messages once they are full, so that an append writes no block anew; never changed.
CREATE TABLE reasoning_blocks (
    bucket       smallint NOT NULL,
    session_id   text     NOT NULL,
    -- 1, 257, 513 …
    first_number bigint   NOT NULL,
    -- Lines of antiphon_reasoning_outline, in order.
    outline      text     NOT NULL,
    -- What views show of the texts, one after the other.
    texts        text     NOT NULL,
    PRIMARY KEY (bucket, session_id, first_number),
    FOREIGN KEY (bucket, session_id) REFERENCES reasoning_sessions ON DELETE CASCADE
);

-- A message without its text, in one line: role, whether it is of the temp layer, characters, bytes that views show of the text, calls,
-- call that is answered, tool. What comes from outside is JSON, which has no tabs and no line breaks of its own.
CREATE FUNCTION antiphon_reasoning_outline(
    role text, in_temp boolean, chars integer, shown_bytes integer, calls jsonb, answers text, tool text
) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT role || E'\t' || in_temp || E'\t' || chars || E'\t' || shown_bytes || E'\t' || coalesce(calls::text, '') || E'\t'
        || coalesce(to_json(answers)::text, '') || E'\t' || coalesce(to_json(tool)::text, '')
$$;

-- A compression. The newest that is not undone says what is shown of the numbers up to its summary; what was appended later follows.
CREATE TABLE reasoning_layers (
    bucket         smallint    NOT NULL,
    session_id     text        NOT NULL,
    layer_id       bigint      NOT NULL CHECK (layer_id > 0),
    -- The layer that counted before; 0: none.
    previous_id    bigint      NOT NULL,
    -- What was replaced, in the order in which it was shown.
    replaced       bigint[]    NOT NULL,
    first_number   bigint      NOT NULL,
    last_number    bigint      NOT NULL,
    summary_number bigint      NOT NULL,
    -- Runs of numbers that follow each other, in the order in which they are shown: first, last, first, last …
    shown          bigint[]    NOT NULL,
    -- Characters of what was replaced.
    chars          bigint      NOT NULL,
    -- The snapshot in which it was decided on.
    token          text        NOT NULL,
    request_id     text,
    request_hash   text,
    actor          text        NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    undone_at      timestamptz,
    undone_by      text,
    PRIMARY KEY (bucket, session_id, layer_id),
    FOREIGN KEY (bucket, session_id) REFERENCES reasoning_sessions ON DELETE CASCADE
);

CREATE UNIQUE INDEX reasoning_layers_request ON reasoning_layers (bucket, session_id, request_id)
    WHERE request_id IS NOT NULL;

-- Named layers to which a session can return.
CREATE TABLE reasoning_checkpoints (
    bucket     smallint    NOT NULL,
    session_id text        NOT NULL,
    name       text        NOT NULL,
    layer_id   bigint      NOT NULL,
    made_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, session_id, name),
    FOREIGN KEY (bucket, session_id) REFERENCES reasoning_sessions ON DELETE CASCADE
);

DO $$
BEGIN
    ALTER TABLE reasoning_messages ALTER COLUMN content SET COMPRESSION lz4;
    ALTER TABLE reasoning_blocks ALTER COLUMN outline SET COMPRESSION lz4, ALTER COLUMN texts SET COMPRESSION lz4;
EXCEPTION
    WHEN feature_not_supported OR invalid_parameter_value THEN
        ALTER TABLE reasoning_messages ALTER COLUMN content SET STORAGE EXTERNAL;
END
$$;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['reasoning_sessions', 'reasoning_messages', 'reasoning_blocks', 'reasoning_layers', 'reasoning_checkpoints'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY tenant_isolation ON %I USING (antiphon_tenant_visible(session_id)) WITH CHECK (antiphon_tenant_visible(session_id))', name);
    END LOOP;
END
$$;
