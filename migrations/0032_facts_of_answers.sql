-- People are shown what was remembered since an answer, with the answer: a page of a history reads the facts of its answers.

-- As in all indexes. It changes no row.
ALTER TABLE facts ALTER COLUMN assistant_message_id TYPE text COLLATE "C";

-- In place of `facts_thread`, whose column is its first.
CREATE INDEX IF NOT EXISTS facts_answer ON facts (thread_id, assistant_message_id) WHERE thread_id IS NOT NULL;
DROP INDEX IF EXISTS facts_thread;
