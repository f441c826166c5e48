-- Threads of requests that are to leave no conversation: those that bring their whole history with them, and those that ask
-- for a title or for suggestions. No list has them. They are emptied some time after their last message.
ALTER TABLE threads
    ADD COLUMN is_temporary boolean NOT NULL DEFAULT false,
    -- When everything that was said in it was deleted. Its row follows later.
    ADD COLUMN emptied_at timestamptz;

CREATE INDEX threads_temporary ON threads (created_at) WHERE is_temporary AND emptied_at IS NULL;
CREATE INDEX threads_emptied ON threads (emptied_at) WHERE emptied_at IS NOT NULL;

-- As before, but a temporary thread is not listed.
CREATE OR REPLACE FUNCTION antiphon_list_thread(of_bucket smallint, of_thread text, of_title text, of_title_by text, of_archived boolean) RETURNS boolean
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
WHERE t.bucket = of_bucket AND t.thread_id = of_thread AND strpos(t.thread_id, '+') = 0 AND NOT t.is_temporary
ON CONFLICT (bucket, thread_id) DO UPDATE
SET active_at = greatest(l.active_at, excluded.active_at),
    title = CASE WHEN antiphon_title_rank(excluded.title_by) > antiphon_title_rank(l.title_by) THEN excluded.title ELSE l.title END,
    title_by = CASE WHEN antiphon_title_rank(excluded.title_by) > antiphon_title_rank(l.title_by) THEN excluded.title_by ELSE l.title_by END,
    agent_id = excluded.agent_id, user_id = excluded.user_id
RETURNING true
$$;

-- The import of a history into a temporary thread is no act of a person, and comes with each request: it is in no audit log.
DO $$
DECLARE
    before CONSTANT text := pg_get_functiondef('antiphon_import_thread'::regproc);
    after CONSTANT text := replace(before, 'IF of_actor IS NOT NULL AND (',
        'IF of_actor IS NOT NULL AND NOT EXISTS (SELECT FROM threads AS t WHERE t.bucket = of_bucket AND t.thread_id = of_thread AND t.is_temporary) AND (');
BEGIN
    IF after = before THEN
        RAISE 'antiphon_import_thread has no entry in the audit log to leave out';
    END IF;
    EXECUTE after;
END
$$;
