-- Contexts: what compactions have put away, and messages that do not stand beside the rest of their batch.

-- What a thread's contexts show of what is older. Messages stay where they are; the newest row that is not undone counts,
-- and says everything, so that undoing it makes the one before it count again.
CREATE TABLE compactions (
    bucket        smallint    NOT NULL,
    thread_id     text        NOT NULL,
    -- A position: above everything that the compaction knew of.
    compaction_id bigint      NOT NULL,
    -- Batches up to this one are out of contexts,
    through       bigint      NOT NULL,
    -- but not these.
    kept          bigint[]    NOT NULL DEFAULT '{}',
    -- Stands for what is out.
    summary       text,
    strategy      text        NOT NULL CHECK (strategy IN ('drop_oldest', 'summarise', 'importance', 'age')),
    -- Which batches left, how many messages they have, tokens before and after.
    provenance    jsonb       NOT NULL DEFAULT '{}',
    -- The one that counted before.
    previous_id   bigint,
    -- A position: turns that began when the thread had come so far saw it. One that waits for a summary counts later than it was
    -- planned.
    counts_from   bigint      NOT NULL,
    -- A position: from there on it does not count any more.
    undone_at     bigint,
    undone_by     text,
    actor         text        NOT NULL DEFAULT 'system',
    -- The task that writes the summary. Until it has, the compaction does not count.
    pending_agent text,
    pending_task  text,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, thread_id, compaction_id)
);

-- A batch is read from its first message on, up to the first message of another one: a range of the primary key. What of it
-- stands elsewhere (a batch that went on later, or was mixed with others where it was imported from) is marked, and found by
-- this index, which is empty but for such messages.
ALTER TABLE messages ADD COLUMN detached boolean NOT NULL DEFAULT false;
CREATE INDEX messages_detached ON messages (bucket, thread_id, batch_id) WHERE detached;
