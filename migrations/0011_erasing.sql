-- Erasing reaches what follows the turns of a thread, and lasts until the thread is named again on purpose.

-- As in every session that is no tenant's: what is erased already has to be seen here.
SET LOCAL antiphon.tenant = '*';

-- NULL: what comes for the thread is dropped. A row in `threads` says nothing of this: a commit that was under way may have written one.
ALTER TABLE erased_threads ADD COLUMN named_at timestamptz;
-- Agents that held text of it: what comes late for their queues is looked for when the thread is erased again.
ALTER TABLE erased_threads ADD COLUMN agents text[] NOT NULL DEFAULT '{}';
UPDATE erased_threads AS e SET named_at = clock_timestamp()
WHERE EXISTS (SELECT FROM threads AS t WHERE t.bucket = e.bucket AND t.thread_id = e.thread_id);

-- The thread whose text a task, or the input of its turn, carries: by what the system writes into the metadata of what follows a turn. Its
-- tenant is that of the agent. NULL for everything else.
CREATE FUNCTION antiphon_origin(owner text, metadata jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN metadata ? 'thread_id' AND (metadata ? 'assistant_message_id' OR metadata ? 'compaction_id')
                THEN CASE strpos(owner, '~') WHEN 0 THEN '' ELSE split_part(owner, '~', 1) || '~' END
                     || (metadata ->> 'thread_id') END;

-- Only what follows a turn is in these, so that everything else costs nothing.
CREATE INDEX tasks_origin ON tasks (antiphon_origin(agent_id, metadata)) WHERE kind <> 'task';
CREATE INDEX messages_origin ON messages (antiphon_origin(thread_id, metadata))
    WHERE sequence_num = 0 AND metadata ? 'thread_id' AND (metadata ? 'assistant_message_id' OR metadata ? 'compaction_id');

-- Whose a dead letter is: of an entry that could not be read the subject says so. NULL: nobody can tell.
CREATE FUNCTION antiphon_letter_owner(thread_id text, subject text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN coalesce(thread_id,
                    substring(subject FROM '^(?:chunks|tasks)[.](?:[0-9]+[.])?((?:[a-z0-9][a-z0-9-]*~)?[A-Za-z0-9_-]+)(?:[+][a-z_]+)?$'));

-- A tenant sees its own, entries too.
DROP POLICY tenants ON dead_letters;
CREATE POLICY tenants ON dead_letters USING (antiphon_sees(antiphon_letter_owner(thread_id, subject)))
    WITH CHECK (antiphon_sees(antiphon_letter_owner(thread_id, subject)));

-- Replayed: its payload was put into the stream again, once. `claimed_at`: somebody is about to.
ALTER TABLE dead_letters ADD COLUMN claimed_at timestamptz;
ALTER TABLE dead_letters ADD COLUMN replayed_at timestamptz;

-- They are read by pages, the newest first, and the oldest go first.
DROP INDEX dead_letters_created_at;
CREATE INDEX dead_letters_created_at ON dead_letters (created_at, bucket, kind, key);

-- What is old goes. Written in the order of time, so that this costs next to nothing.
CREATE INDEX tasks_created_at ON tasks USING brin (created_at);
CREATE INDEX audit_at_brin ON audit USING brin (at);
CREATE INDEX failed_tasks_failed_at ON failed_tasks (failed_at);
CREATE INDEX failed_turns_failed_at ON failed_turns (failed_at);

-- Marks go when they are old.
CREATE INDEX erased_threads_erased_at ON erased_threads (erased_at);
