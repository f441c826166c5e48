-- Threads, their messages, and what contexts show of them.

CREATE TABLE threads (
    bucket        smallint    NOT NULL,
    thread_id     text        NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Position of the last message: the predecessor of the next one. NULL: there is none.
    head_position bigint,
    message_count bigint      NOT NULL DEFAULT 0,
    -- How many of them the system made up (metadata: synthetic is true): they are not shown to people.
    hidden_count  bigint      NOT NULL DEFAULT 0,
    -- The highest number that a message of it was given. Never falls: what retention deletes leaves gaps.
    last_number   bigint      NOT NULL DEFAULT 0,
    -- Counts what changes the thread other than by messages behind its head: deletions, imports into its middle, repairs. With
    -- created_at, head_position and message_count it proves that what an owner remembers of the thread is still true.
    revision      integer     NOT NULL DEFAULT 0,
    -- Whose workflow answers in the thread. NULL: the agent that bears the thread's id.
    agent_id      text,
    -- What a second input does to a turn in progress. NULL: 'enqueue'.
    busy_policy   text        CHECK (busy_policy IN ('enqueue', 'reject', 'interrupt', 'rollback')),
    metadata      jsonb       NOT NULL DEFAULT '{}',
    PRIMARY KEY (bucket, thread_id)
) WITH (
    -- Updated with every message, no indexed column changes: heap-only updates need room on the page.
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);

-- The threads of an agent, for lists over all of them. A thread that names no agent is its own.
CREATE INDEX threads_agent ON threads (agent_id, bucket, thread_id) WHERE agent_id IS NOT NULL;

CREATE TABLE messages (
    bucket       smallint    NOT NULL,
    thread_id    text        NOT NULL,
    position     bigint      NOT NULL,
    message_id   text        NOT NULL,
    batch_id     bigint      NOT NULL,
    sequence_num integer     NOT NULL,
    -- Its number in the thread, from 1: rises with the position, and is never changed or given again. NULL: written before there were
    -- numbers, or by a version without them; `antiphon migrate` gives it one. Four bytes beside four others, so that it costs no more.
    number       integer     CHECK (number > 0),
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
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- A batch is read from its first message on, up to the first message of another one: a range of the primary key. Messages outside
    -- this range (of a batch that was continued later, or that was interleaved with others where it was imported from) are marked,
    -- and found by an index that holds only them.
    out_of_range boolean     NOT NULL DEFAULT false,
    -- Serves history, newest and oldest first.
    PRIMARY KEY (bucket, thread_id, position),
    -- Serves "once": look-ups, and the constraint behind them. The message before the thread: a client that has only the id of an
    -- answer finds its thread by it.
    UNIQUE (bucket, message_id, thread_id)
) WITH (
    -- Insert-only: freeze early and in small pieces instead of all at once.
    autovacuum_vacuum_insert_scale_factor = 0.05
);

CREATE INDEX messages_out_of_range ON messages (bucket, thread_id, batch_id) WHERE out_of_range;
-- What is still to be numbered. Empty, so it costs a write nothing.
CREATE INDEX messages_unnumbered ON messages (bucket, thread_id, position) WHERE number IS NULL;

-- The thread whose text a task, or the input of its turn, carries: from the metadata that the system writes into whatever follows a
-- turn. Its tenant is that of the agent. NULL for everything else.
CREATE FUNCTION antiphon_origin_thread(owner text, metadata jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN metadata ? 'thread_id' AND (metadata ? 'assistant_message_id' OR metadata ? 'compaction_id')
                THEN CASE strpos(owner, '~') WHEN 0 THEN '' ELSE split_part(owner, '~', 1) || '~' END
                     || (metadata ->> 'thread_id') END;

-- Serves erasing. Only what follows a turn is in it, so that everything else costs nothing.
CREATE INDEX messages_origin ON messages (antiphon_origin_thread(thread_id, metadata))
    WHERE sequence_num = 0 AND metadata ? 'thread_id' AND (metadata ? 'assistant_message_id' OR metadata ? 'compaction_id');

-- How messages failed, for clients that were away: with the messages themselves, all ends of a thread in the order in which clients
-- got them. Written in the commit that ends the message.
CREATE TABLE failed_messages (
    bucket       smallint    NOT NULL,
    thread_id    text        NOT NULL,
    -- Its place among the ends of the thread. No message has it.
    position     bigint      NOT NULL,
    message_id   text        NOT NULL,
    attempt      bigint      NOT NULL,
    role         text        NOT NULL,
    batch_type   text        NOT NULL,
    -- What clients get: a code, a text, and for a gap the missing chunks as [{"first": …, "last": …}, …].
    code         text        NOT NULL,
    text         text        NOT NULL,
    missing      jsonb       NOT NULL DEFAULT '[]',
    is_retryable boolean     NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, thread_id, position),
    UNIQUE (bucket, message_id, thread_id)
);

-- Deleted by age.
CREATE INDEX failed_messages_created_at ON failed_messages (created_at);

-- Messages that retention has deleted: what arrives for them again, from the stream or from a publisher, is known to have ended.
CREATE TABLE expired_messages (
    bucket     smallint    NOT NULL,
    message_id text        NOT NULL,
    thread_id  text        NOT NULL,
    expired_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- In the order in which look-ups name them.
    PRIMARY KEY (bucket, message_id, thread_id)
);

-- Deleted by age.
CREATE INDEX expired_messages_expired_at ON expired_messages (expired_at);
-- Serves erasing.
CREATE INDEX expired_messages_thread ON expired_messages (bucket, thread_id);

-- What a thread's contexts show of older batches. Messages stay where they are; the newest row that is not undone counts, and is
-- complete in itself, so that undoing it makes the one before it count again.
CREATE TABLE compactions (
    bucket              smallint    NOT NULL,
    thread_id           text        NOT NULL,
    -- A position: above everything that the compaction knew of.
    compaction_id       bigint      NOT NULL,
    -- Batches up to this one are out of contexts,
    through_position    bigint      NOT NULL,
    -- but not these.
    kept_positions      bigint[]    NOT NULL DEFAULT '{}',
    -- Replaces what is out.
    summary             text,
    strategy            text        NOT NULL CHECK (strategy IN ('drop_oldest', 'summarise', 'importance', 'age')),
    -- Which batches left, how many messages they have, tokens before and after.
    provenance          jsonb       NOT NULL DEFAULT '{}',
    -- The one that counted before.
    previous_id         bigint,
    -- Turns that began when the thread had come so far saw it. One that waits for a summary becomes valid later than it was planned.
    valid_from_position bigint      NOT NULL,
    -- From this position on it does not count any more.
    undone_at_position  bigint,
    undone_by           text,
    actor               text        NOT NULL DEFAULT 'system',
    -- The task that writes the summary. Until it is done the compaction does not count.
    pending_agent       text,
    pending_task        text,
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, thread_id, compaction_id)
);

-- Threads that were erased: what arrives late for one of them brings nothing back, until it is created again on purpose.
CREATE TABLE erased_threads (
    bucket       smallint    NOT NULL,
    thread_id    text        NOT NULL,
    erased_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor        text        NOT NULL,
    -- {"<table>": <rows>, …}: what was erased, summed over all times.
    receipt      jsonb       NOT NULL DEFAULT '{}',
    -- NULL: what arrives for the thread is dropped. A row in `threads` does not show this: a commit in progress may have written one.
    recreated_at timestamptz,
    -- Agents that held text of it: what arrives late for their queues is looked for when the thread is erased again.
    agents       text[]      NOT NULL DEFAULT '{}',
    PRIMARY KEY (bucket, thread_id)
);

-- Deleted by age.
CREATE INDEX erased_threads_erased_at ON erased_threads (erased_at);
