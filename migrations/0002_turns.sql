-- Turns, tasks and agents.
--
-- Tasks are insert-only: what became of one follows from its agent's head and from a mark for those that failed, so that
-- completing a task updates one narrow row in place and no index. Nothing here is ever "in progress".

-- The key of turn tokens: HMAC-SHA256. Made by the first migration that knows of it, never sent anywhere.
-- sha256 over random UUIDs: the server's own strong random source without an extension.
ALTER TABLE fleet ADD COLUMN token_key bytea NOT NULL
    DEFAULT sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8'))
    CHECK (length(token_key) = 32);

-- What operators say of an agent. Wide and seldom written; read at the start of each turn.
CREATE TABLE agent_settings (
    bucket       smallint    NOT NULL,
    agent_id     text        NOT NULL,
    -- Whose services think for it: the last token of work.<workflow>.
    workflow     text        NOT NULL,
    -- deadline_ms, backoff_base_ms, backoff_cap_ms, max_attempts, context_tokens, work_request, memory,
    -- foreground_during_backoff, system (text), and whatever the workflow wants to know. Defaults are the worker's.
    settings     jsonb       NOT NULL DEFAULT '{}',
    version      bigint      NOT NULL DEFAULT 1,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, agent_id)
);

-- The queue's state: one narrow row an agent, written by the owner of its bucket only.
CREATE TABLE agents (
    bucket                smallint    NOT NULL,
    agent_id              text        NOT NULL,
    -- All tasks up to this position are done, or marked failed.
    head_position         bigint      NOT NULL DEFAULT 0,
    -- How often the task after the head has failed: the run of its next turn.
    head_run              integer     NOT NULL DEFAULT 0,
    backoff_attempt_count integer     NOT NULL DEFAULT 0,
    -- By the database's clock. No index: the owner holds the timers, and the updates stay heap-only.
    backoff_next_run_at   timestamptz,
    paused                boolean     NOT NULL DEFAULT false,
    error_code            text,
    error_text            text,
    error_at              timestamptz,
    PRIMARY KEY (bucket, agent_id)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE tasks (
    bucket     smallint    NOT NULL,
    agent_id   text        NOT NULL,
    -- Its place in the queue.
    position   bigint      NOT NULL,
    task_id    text        NOT NULL,
    kind       text        NOT NULL CHECK (kind IN ('task', 'work_request', 'memory', 'compaction')),
    content    text        NOT NULL,
    metadata   jsonb       NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, agent_id, position)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);

-- Which task ids are known, for seven days: the wall behind "once". The digest tells another payload. Ids of tasks that are
-- pending or marked failed stay longer: operators name tasks by them.
CREATE TABLE task_ids (
    bucket     smallint    NOT NULL,
    agent_id   text        NOT NULL,
    task_id    text        NOT NULL,
    position   bigint      NOT NULL,
    digest     bigint      NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, agent_id, task_id)
);

-- For retention. It grows at its end only.
CREATE INDEX task_ids_created_at ON task_ids (created_at);

-- Marks: these tasks failed. Beside the tasks, so that those stay insert-only.
CREATE TABLE failed_tasks (
    bucket    smallint    NOT NULL,
    agent_id  text        NOT NULL,
    position  bigint      NOT NULL,
    code      text        NOT NULL,
    text      text        NOT NULL,
    failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, agent_id, position)
);

-- Tasks with their status, for readers.
CREATE VIEW agent_tasks AS
SELECT t.bucket, t.agent_id, t.position, t.task_id, t.kind,
       CASE WHEN f.position IS NOT NULL THEN 'failed'
            WHEN t.position <= coalesce(a.head_position, 0) THEN 'completed'
            ELSE 'pending' END AS status,
       t.content, t.metadata, f.code AS failure_code, f.text AS failure_text, f.failed_at, t.created_at
FROM tasks AS t
LEFT JOIN agents AS a ON a.bucket = t.bucket AND a.agent_id = t.agent_id
LEFT JOIN failed_tasks AS f ON f.bucket = t.bucket AND f.agent_id = t.agent_id AND f.position = t.position;

-- Inputs of persons whose turn failed: kept, so that no prompt is lost. A retry that succeeds ends the row.
CREATE TABLE failed_turns (
    bucket         smallint    NOT NULL,
    thread_id      text        NOT NULL,
    turn_id        text        NOT NULL,
    agent_id       text        NOT NULL,
    -- The run that failed, from 0.
    run            integer     NOT NULL,
    policy         text        NOT NULL,
    content        text        NOT NULL,
    metadata       jsonb       NOT NULL,
    work_request   boolean     NOT NULL,
    memory         boolean     NOT NULL,
    correlation_id text,
    code           text        NOT NULL,
    text           text        NOT NULL,
    is_retryable   boolean     NOT NULL,
    failed_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, thread_id, turn_id)
);

-- Inputs that wait or run for so long that they are saved, so that the checkpoint can pass them.
CREATE TABLE open_turns (
    bucket         smallint    NOT NULL,
    thread_id      text        NOT NULL,
    turn_id        text        NOT NULL,
    agent_id       text        NOT NULL,
    run            integer     NOT NULL,
    policy         text        NOT NULL,
    content        text        NOT NULL,
    metadata       jsonb       NOT NULL,
    work_request   boolean     NOT NULL,
    memory         boolean     NOT NULL,
    actor          text,
    correlation_id text,
    -- The entry in the stream: the order in which inputs wait.
    stream_seq     bigint      NOT NULL,
    -- Which stream that counts in: inputs of one that was made anew meanwhile came earlier than all of the present one.
    incarnation    text        NOT NULL,
    saved_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, thread_id, turn_id)
);

-- What is published after a commit: one row a commit, gone once all of it has been published. The bucket is the number of
-- the partition, which always belongs to that partition.
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

-- As for messages: lz4, or stored as they are where the server has none.
DO $$
BEGIN
    ALTER TABLE tasks ALTER COLUMN content SET COMPRESSION lz4;
    ALTER TABLE outbox ALTER COLUMN entries SET COMPRESSION lz4;
EXCEPTION
    WHEN feature_not_supported OR invalid_parameter_value THEN
        ALTER TABLE tasks ALTER COLUMN content SET STORAGE EXTERNAL;
END
$$;

-- Who did what to agents, tasks and turns.
CREATE TABLE audit (
    bucket     smallint    NOT NULL,
    subject_id text        NOT NULL,
    act_id     text        NOT NULL,
    actor      text        NOT NULL,
    what       text        NOT NULL,
    target     text,
    -- NULL: done. Else why not.
    refused    text,
    at         timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX audit_at ON audit (bucket, subject_id, at);

-- After the other index: while the table is nearly empty both look the same to the planner, and it takes the younger one.
ALTER TABLE audit ADD PRIMARY KEY (bucket, subject_id, act_id);

-- The same key and the same payload name the same turn. Written by gateways, before the input is published.
CREATE TABLE idempotency_keys (
    bucket     smallint    NOT NULL,
    thread_id  text        NOT NULL,
    key        text        NOT NULL,
    digest     bytea       NOT NULL,
    turn_id    text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, thread_id, key)
);

-- Whose workflow answers in a thread, and what a second input does to a turn under way. NULL: the agent that bears the
-- thread's id, and 'enqueue'.
ALTER TABLE threads ADD COLUMN agent_id text;
ALTER TABLE threads ADD COLUMN busy_policy text CHECK (busy_policy IN ('enqueue', 'reject', 'interrupt', 'rollback'));
ALTER TABLE threads ADD COLUMN metadata jsonb NOT NULL DEFAULT '{}';
