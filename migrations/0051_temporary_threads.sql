-- Threads of requests that are to leave no conversation: those that bring their whole history with them, and those that ask
-- for a title or for suggestions. No list has them. They are emptied some time after their last message.
ALTER TABLE threads
    ADD COLUMN is_temporary boolean NOT NULL DEFAULT false,
    -- When everything that was said in it was deleted. Its row follows later.
    ADD COLUMN emptied_at timestamptz;

CREATE INDEX threads_temporary ON threads (created_at) WHERE is_temporary AND emptied_at IS NULL;
CREATE INDEX threads_emptied ON threads (emptied_at) WHERE emptied_at IS NOT NULL;

-- What two functions do not do for such threads. The import of a history comes with each request and is no act of a person, so it is in
-- no audit log.
DO $$
DECLARE
    of_function text;
    condition text;
    with_more text;
    before text;
BEGIN
    FOR of_function, condition, with_more IN VALUES
        ('antiphon_list_thread', 'strpos(t.thread_id, ''+'') = 0', 'strpos(t.thread_id, ''+'') = 0 AND NOT t.is_temporary'),
        ('antiphon_import_thread', 'IF of_actor IS NOT NULL AND (',
         'IF of_actor IS NOT NULL AND NOT EXISTS (SELECT FROM threads AS t WHERE t.bucket = of_bucket AND t.thread_id = of_thread AND t.is_temporary) AND (')
    LOOP
        before := pg_get_functiondef(of_function::regproc);
        IF strpos(before, condition) = 0 THEN
            RAISE '% does not have the condition %', of_function, condition;
        END IF;
        EXECUTE replace(before, condition, with_more);
    END LOOP;
END
$$;
