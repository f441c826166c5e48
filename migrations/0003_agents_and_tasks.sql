-- Agents and their queues.
--
-- Tasks are insert-only: a task's status follows from its agent's head and from a mark for those that failed, so that completing a
-- task updates one narrow row in place and no index. Nothing here is ever "in progress".

-- What operators set of an agent. Wide and seldom written; read at the start of each turn.
CREATE TABLE agent_settings (
    bucket       smallint    NOT NULL,
    agent_id     text        NOT NULL,
    -- Which workflow runs its turns: the last token of work.<workflow>.
    workflow     text        NOT NULL,
    -- deadline_ms, backoff_base_ms, backoff_cap_ms, max_attempts, context_tokens, work_request, memory,
    -- foreground_during_backoff, system (text), and whatever the workflow needs. Defaults are the worker's.
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

-- Serves erasing. Only what follows a turn is in it, so that everything else costs nothing.
CREATE INDEX tasks_origin ON tasks (antiphon_origin_thread(agent_id, metadata)) WHERE kind <> 'task';

-- Deleted by age. Written in the order of time, so that a BRIN index costs next to nothing.
CREATE INDEX tasks_created_at ON tasks USING brin (created_at);

-- Which task ids are known, for seven days: the constraint behind "once". The digest detects another payload. Ids of tasks that are
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

-- Deleted by age. It grows at its end only.
CREATE INDEX task_ids_created_at ON task_ids (created_at);

-- Marks of tasks that failed. Beside the tasks, so that those stay insert-only.
CREATE TABLE failed_tasks (
    bucket    smallint    NOT NULL,
    agent_id  text        NOT NULL,
    position  bigint      NOT NULL,
    code      text        NOT NULL,
    text      text        NOT NULL,
    failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, agent_id, position)
);

-- Deleted by age.
CREATE INDEX failed_tasks_failed_at ON failed_tasks (failed_at);

-- Tasks with their status, for readers; with the rights of the reader, not of the view's owner.
CREATE VIEW agent_tasks WITH (security_invoker = true) AS
SELECT t.bucket, t.agent_id, t.position, t.task_id, t.kind,
       CASE WHEN f.position IS NOT NULL THEN 'failed'
            WHEN t.position <= coalesce(a.head_position, 0) THEN 'completed'
            ELSE 'pending' END AS status,
       t.content, t.metadata, f.code AS failure_code, f.text AS failure_text, f.failed_at, t.created_at
FROM tasks AS t
LEFT JOIN agents AS a ON a.bucket = t.bucket AND a.agent_id = t.agent_id
LEFT JOIN failed_tasks AS f ON f.bucket = t.bucket AND f.agent_id = t.agent_id AND f.position = t.position;
