-- Changes a thread by a client. $1 bucket, $2 thread, $3 the version that the thread must have, or
-- NULL; $4 whether the title changes, $5 the title; $6 archived, or NULL; $7 metadata, or NULL;
-- $8 whether the agent changes, $9 the agent. A temporary thread that a client changes is kept.
WITH known AS MATERIALIZED (
    -- Locked in the order in which commits lock: the thread before its row of the list.
    SELECT t.created_at, t.agent_id, t.metadata FROM threads AS t WHERE t.bucket = $1 AND t.thread_id = $2 FOR NO KEY UPDATE
)
, patched AS (
    INSERT INTO thread_list AS l (bucket, thread_id, tenant, active_at, title, title_by, is_archived, agent_id, user_id, version)
    SELECT $1, $2, antiphon_tenant_of($2), k.created_at, $5, CASE WHEN $5 IS NOT NULL THEN 'client' END, coalesce($6, false),
           CASE WHEN $8 THEN $9 ELSE k.agent_id END, antiphon_listed_user(coalesce($7, k.metadata)), 1
    FROM known AS k
    WHERE coalesce($3, 0) = 0
       OR EXISTS (SELECT FROM thread_list AS o WHERE o.bucket = $1 AND o.thread_id = $2)
    ON CONFLICT (bucket, thread_id) DO UPDATE
    SET title = CASE WHEN $4 THEN $5 ELSE l.title END,
        title_by = CASE WHEN NOT $4 THEN l.title_by WHEN $5 IS NOT NULL THEN 'client' END,
        is_archived = coalesce($6, l.is_archived),
        agent_id = CASE WHEN $8 THEN $9 ELSE l.agent_id END,
        user_id = CASE WHEN $7::jsonb IS NULL THEN l.user_id ELSE antiphon_listed_user($7) END,
        version = l.version + 1
    WHERE $3 IS NULL OR l.version = $3
    RETURNING version
)
, changed AS (
    UPDATE threads AS t
    SET metadata = coalesce($7, t.metadata),
        agent_id = CASE WHEN $8 THEN $9 ELSE t.agent_id END,
        is_temporary = false,
        -- The owner reads the thread again before its next turn.
        revision = t.revision + 1
    WHERE t.bucket = $1 AND t.thread_id = $2 AND ($7::jsonb IS NOT NULL OR $8 OR t.is_temporary) AND EXISTS (SELECT FROM patched)
)
SELECT EXISTS (SELECT FROM known) AS is_known, EXISTS (SELECT FROM patched) AS is_patched
