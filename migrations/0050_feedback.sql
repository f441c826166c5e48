-- What users say of messages: a score, a label, a comment. One row for each message and user.
CREATE TABLE feedback (
    bucket     smallint         NOT NULL,
    thread_id  text             COLLATE "C" NOT NULL,
    message_id text             COLLATE "C" NOT NULL,
    -- '': no user was named.
    user_id    text             COLLATE "C" NOT NULL CHECK (octet_length(user_id) <= 1024),
    -- '-': the default tenant. Leads the index of lists.
    tenant     text             COLLATE "C" NOT NULL,
    -- The agent that answered in the thread at that time, for filters.
    agent_id   text             COLLATE "C" NOT NULL,
    score      double precision CHECK (score BETWEEN -1 AND 1),
    label      text             CHECK (octet_length(label) BETWEEN 1 AND 256),
    comment    text             CHECK (octet_length(comment) BETWEEN 1 AND 16384),
    created_at timestamptz      NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz      NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, thread_id, message_id, user_id),
    CHECK (tenant = antiphon_tenant_of(thread_id)),
    CHECK (score IS NOT NULL OR label IS NOT NULL OR comment IS NOT NULL)
);

CREATE INDEX feedback_newest ON feedback (tenant, updated_at, thread_id, message_id, user_id);
CREATE INDEX feedback_agent ON feedback (tenant, agent_id, updated_at, thread_id, message_id, user_id);
CREATE INDEX feedback_user ON feedback (tenant, user_id) WHERE user_id <> '';

ALTER TABLE feedback ENABLE ROW LEVEL SECURITY;
ALTER TABLE feedback FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant_isolation ON feedback
    USING (antiphon_tenant_visible(thread_id)) WITH CHECK (antiphon_tenant_visible(thread_id));
