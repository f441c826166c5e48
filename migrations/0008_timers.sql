-- Durable timers: what fires later, once, on whichever worker owns its bucket then. Written in the commits of owners, and for schedules and
-- delayed tasks by gateways; fired in a commit whose outbox has what is fired.

CREATE TABLE timers (
    -- Of the thread of a follow-up, of the agent of anything else.
    bucket       smallint    NOT NULL,
    timer_id     text        NOT NULL,
    kind         text        NOT NULL CHECK (kind IN ('follow_up', 'schedule', 'task')),
    -- NULL: it belongs to no thread.
    thread_id    text        CHECK (thread_id IS NOT NULL OR kind <> 'follow_up'),
    agent_id     text        NOT NULL,
    -- Of the agent, whose settings may stand in another partition than the timer.
    agent_bucket smallint    NOT NULL,
    -- By the database's clock.
    due_at       timestamptz NOT NULL,
    -- 'withdrawn': what it fired was taken back before anything of it was seen. 'refused': a rule was against it.
    state        text        NOT NULL DEFAULT 'pending'
        CHECK (state IN ('pending', 'fired', 'cancelled', 'withdrawn', 'refused')),
    -- follow_up: {"trigger_type", "reason", "armed_by", "armed_position", "source"}; task: {"task": {…}, "not_before_ms"}; schedule: {"schedule": name}.
    body         jsonb       NOT NULL DEFAULT '{}',
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at     timestamptz,
    -- Who cancelled it, or which rule or event ended it.
    ended_by     text,
    -- The turn that it fired.
    fired_turn   text,
    PRIMARY KEY (bucket, timer_id)
);

-- Read by owners, in the order in which they fire; never more than a window of them.
CREATE INDEX timers_due ON timers (bucket, due_at, timer_id) WHERE state = 'pending';
-- What a thread has had: a newer one replaces the older, and the rules count what was fired.
CREATE INDEX timers_thread ON timers (bucket, thread_id, created_at) WHERE thread_id IS NOT NULL;
-- What an agent has that waits, for lists and bounds.
CREATE INDEX timers_agent ON timers (bucket, agent_id, kind, due_at, timer_id) WHERE state = 'pending' AND kind <> 'follow_up';
-- Deleted by age.
CREATE INDEX timers_ended_at ON timers (ended_at) WHERE ended_at IS NOT NULL;

-- Schedules as they were put. The next occurrence of each is a row of `timers`.
CREATE TABLE schedules (
    bucket      smallint    NOT NULL,
    agent_id    text        NOT NULL,
    name        text        NOT NULL,
    -- One of the two: again and again, or once.
    cron        text,
    at          timestamptz,
    -- IANA.
    time_zone   text        NOT NULL DEFAULT 'UTC',
    overlap     text        NOT NULL DEFAULT 'skip' CHECK (overlap IN ('skip', 'queue')),
    missed      text        NOT NULL DEFAULT 'skip' CHECK (missed IN ('skip', 'one')),
    -- The task of each occurrence.
    content     text        NOT NULL,
    metadata    jsonb       NOT NULL DEFAULT '{}',
    enabled     boolean     NOT NULL DEFAULT true,
    -- The one that counts: one of an earlier version does nothing when it is due.
    timer_id    text        NOT NULL,
    version     bigint      NOT NULL DEFAULT 1,
    created_by  text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, agent_id, name),
    CHECK ((cron IS NULL) <> (at IS NULL))
);

ALTER TABLE timers ENABLE ROW LEVEL SECURITY;
ALTER TABLE timers FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant_isolation ON timers
    USING (antiphon_tenant_visible(agent_id) AND antiphon_tenant_visible(coalesce(thread_id, agent_id)))
    WITH CHECK (antiphon_tenant_visible(agent_id) AND antiphon_tenant_visible(coalesce(thread_id, agent_id)));
ALTER TABLE schedules ENABLE ROW LEVEL SECURITY;
ALTER TABLE schedules FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant_isolation ON schedules
    USING (antiphon_tenant_visible(agent_id)) WITH CHECK (antiphon_tenant_visible(agent_id));
