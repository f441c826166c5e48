-- Threads that were erased: what comes late for one of them brings nothing back. A thread that is named again on purpose has its
-- row in `threads` again, and that one counts.
CREATE TABLE erased_threads (
    bucket    smallint    NOT NULL,
    thread_id text        NOT NULL,
    erased_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor     text        NOT NULL,
    -- {"<table>": <rows>, …}: what was erased, summed over all times that somebody did it.
    receipt   jsonb       NOT NULL DEFAULT '{}',
    PRIMARY KEY (bucket, thread_id)
);
