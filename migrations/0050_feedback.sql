-- What users say about messages: a score, a label, a comment. One row for each message and user.
CREATE TABLE feedback (
    bucket     smallint         NOT NULL,
    thread_id  text             COLLATE "C" NOT NULL,
    message_id text             COLLATE "C" NOT NULL,
    -- '': no user was named.
    user_id    text             COLLATE "C" NOT NULL CHECK (octet_length(user_id) <= 1024),
    -- '-': the default tenant. Leads the index of lists.
    tenant     text             COLLATE "C" NOT NULL,
    -- The agent that answered, as far as it is known; for filters.
    agent_id   text             COLLATE "C" NOT NULL,
    score      double precision CHECK (score BETWEEN -1 AND 1),
    label      text             COLLATE "C" CHECK (octet_length(label) BETWEEN 1 AND 256),
    comment    text             CHECK (octet_length(comment) BETWEEN 1 AND 16384),
    created_at timestamptz      NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz      NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, thread_id, message_id, user_id),
    CHECK (tenant = antiphon_tenant_of(thread_id)),
    CHECK (score IS NOT NULL OR label IS NOT NULL OR comment IS NOT NULL)
);

CREATE INDEX feedback_newest ON feedback (tenant, updated_at, thread_id, message_id, user_id);
CREATE INDEX feedback_agent ON feedback (tenant, agent_id, updated_at, thread_id, message_id, user_id);
CREATE INDEX feedback_label ON feedback (tenant, label, updated_at, thread_id, message_id, user_id) WHERE label IS NOT NULL;
CREATE INDEX feedback_user ON feedback (tenant, user_id) WHERE user_id <> '';

ALTER TABLE feedback ENABLE ROW LEVEL SECURITY;
ALTER TABLE feedback FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant_isolation ON feedback
    USING (antiphon_tenant_visible(thread_id)) WITH CHECK (antiphon_tenant_visible(thread_id));

-- Stores feedback of an export on messages that the thread has. What a user has said about a message
-- here already stays.
CREATE FUNCTION antiphon_import_feedback(of_bucket smallint, of_thread text, rows jsonb) RETURNS bigint
    LANGUAGE sql VOLATILE
AS $$
WITH written AS (
    INSERT INTO feedback (bucket, thread_id, message_id, user_id, tenant, agent_id, score, label, comment, created_at, updated_at)
    SELECT of_bucket, of_thread, r.message_id, r.user_id, antiphon_tenant_of(of_thread),
           coalesce((SELECT u.agent_id FROM usage AS u
                     WHERE u.bucket = of_bucket AND u.thread_id = of_thread AND u.message_id = r.message_id LIMIT 1),
                    t.agent_id, t.thread_id),
           r.score, r.label, r.comment,
           -- Imported times may be any.
           least(to_timestamp(0) + greatest(r.created_ms, 0) * interval '1 millisecond', clock_timestamp()),
           least(to_timestamp(0) + greatest(r.updated_ms, 0) * interval '1 millisecond', clock_timestamp())
    FROM jsonb_to_recordset(rows) AS r (
        message_id text, user_id text, score double precision, label text, comment text, created_ms bigint, updated_ms bigint)
    JOIN threads AS t ON t.bucket = of_bucket AND t.thread_id = of_thread
    WHERE EXISTS (SELECT FROM messages AS m
                  WHERE m.bucket = of_bucket AND m.thread_id = of_thread AND m.message_id = r.message_id)
    ON CONFLICT (bucket, thread_id, message_id, user_id) DO NOTHING
    RETURNING 1
)
SELECT count(*) FROM written
$$;
