-- The list of threads: what it is ordered, filtered and titled by. The row of a thread in `threads` is updated with every message, and these updates
-- stay heap-only because no index holds what changes there. So the time of the last activity, which is indexed, is in a table of its own, and is
-- written at most once a minute for each thread: with the end of a turn, and by gateways when they accept an input.
CREATE TABLE thread_list (
    bucket      smallint    NOT NULL,
    thread_id   text        COLLATE "C" NOT NULL,
    -- '-': the default tenant. Leads the indexes of lists.
    tenant      text        COLLATE "C" NOT NULL,
    -- The last activity, at most a minute too early.
    active_at   timestamptz NOT NULL,
    -- NULL: no person has written yet.
    title       text        CHECK (length(title) BETWEEN 1 AND 256),
    -- A title is replaced by one of a later kind in this order: the first input, the workflow, a client.
    title_by    text        CHECK (title_by IN ('input', 'workflow', 'client')),
    is_archived boolean     NOT NULL DEFAULT false,
    -- As in `threads`, for filters. NULL: the agent that bears the thread's id.
    agent_id    text        COLLATE "C",
    -- NULL: no user, or one whose name is too long for an entry of an index.
    user_id     text        COLLATE "C" CHECK (octet_length(user_id) BETWEEN 1 AND 1024),
    -- Rises with each change by a client.
    version     integer     NOT NULL DEFAULT 0,
    PRIMARY KEY (bucket, thread_id),
    CHECK (tenant = antiphon_tenant_of(thread_id)),
    CHECK ((title IS NULL) = (title_by IS NULL))
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX thread_list_active ON thread_list (tenant, active_at, thread_id) WHERE NOT is_archived;
CREATE INDEX thread_list_archived ON thread_list (tenant, active_at, thread_id) WHERE is_archived;
CREATE INDEX thread_list_agent ON thread_list (tenant, agent_id, active_at, thread_id) WHERE agent_id IS NOT NULL;
CREATE INDEX thread_list_user ON thread_list (tenant, user_id, active_at, thread_id) WHERE user_id IS NOT NULL;

ALTER TABLE thread_list ENABLE ROW LEVEL SECURITY;
ALTER TABLE thread_list FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant_isolation ON thread_list
    USING (antiphon_tenant_visible(thread_id)) WITH CHECK (antiphon_tenant_visible(thread_id));

-- The title that a text makes: its first 60 characters, in one line. NULL: it has none to show.
CREATE FUNCTION antiphon_title(content text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN nullif(rtrim(left(ltrim(regexp_replace(left(content, 480), '[\s[:cntrl:]]+', ' ', 'g')), 60)), '');

-- The title that a workflow gives the thread in the metadata of an answer, in one line. NULL: none.
CREATE FUNCTION antiphon_workflow_title(metadata jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN jsonb_typeof(metadata -> 'thread_title') = 'string'
                THEN nullif(left(btrim(regexp_replace(left(metadata ->> 'thread_title', 1024), '[\s[:cntrl:]]+', ' ', 'g')), 256), '') END;

-- A title takes the place of one with a lower rank.
CREATE FUNCTION antiphon_title_rank(title_by text) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE title_by WHEN 'input' THEN 1 WHEN 'workflow' THEN 2 WHEN 'client' THEN 3 ELSE 0 END;

-- The user of a thread with these metadata, for lists.
CREATE FUNCTION antiphon_listed_user(metadata jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN octet_length(metadata ->> 'user_id') BETWEEN 1 AND 1024 THEN metadata ->> 'user_id' END;

-- Lists a thread that was written otherwise than by turns: forked, imported with a title and as archived or not, or by a build before this table
-- (`antiphon migrate`). A thread that is listed already stays archived or not.
CREATE FUNCTION antiphon_list_thread(of_bucket smallint, of_thread text, of_title text, of_title_by text, of_archived boolean) RETURNS boolean
    LANGUAGE sql VOLATILE
AS $$
INSERT INTO thread_list AS l (bucket, thread_id, tenant, active_at, title, title_by, is_archived, agent_id, user_id)
SELECT t.bucket, t.thread_id, antiphon_tenant_of(t.thread_id),
       -- Imported times may be any.
       least(greatest(coalesce(e.created_at, t.created_at), to_timestamp(0)), clock_timestamp()),
       coalesce(of_title, antiphon_title(q.content)),
       CASE WHEN of_title IS NOT NULL THEN of_title_by WHEN antiphon_title(q.content) IS NOT NULL THEN 'input' END,
       of_archived, t.agent_id, antiphon_listed_user(t.metadata)
FROM threads AS t
LEFT JOIN LATERAL (
    SELECT m.created_at FROM messages AS m WHERE m.bucket = t.bucket AND m.thread_id = t.thread_id ORDER BY m.position DESC LIMIT 1
) AS e ON true
LEFT JOIN LATERAL (
    SELECT m.content FROM messages AS m
    WHERE m.bucket = t.bucket AND m.thread_id = t.thread_id AND m.role = 'user' AND m.metadata -> 'synthetic' IS DISTINCT FROM 'true'
    ORDER BY m.position LIMIT 1
) AS q ON true
WHERE t.bucket = of_bucket AND t.thread_id = of_thread AND strpos(t.thread_id, '+') = 0
ON CONFLICT (bucket, thread_id) DO UPDATE
SET active_at = greatest(l.active_at, excluded.active_at),
    title = CASE WHEN antiphon_title_rank(excluded.title_by) > antiphon_title_rank(l.title_by) THEN excluded.title ELSE l.title END,
    title_by = CASE WHEN antiphon_title_rank(excluded.title_by) > antiphon_title_rank(l.title_by) THEN excluded.title_by ELSE l.title_by END,
    agent_id = excluded.agent_id, user_id = excluded.user_id
RETURNING true
$$;
