-- Facts are ranked by who searches them, in every script (crate `recall`), and no longer by the words that Postgres makes of them: a search reads all texts of
-- a user. They are in the index by which it reads: a thousand facts are some thirty pages of it instead of a thousand pages of the table.
--
-- Each step can be run again. Workers of the build before still write `language`, and find no facts until they are replaced.

ALTER TABLE facts DROP COLUMN IF EXISTS words, DROP COLUMN IF EXISTS search;

-- NULL: too long for an entry of an index, which has at most 2,704 bytes, together with the ids.
ALTER TABLE facts ADD COLUMN IF NOT EXISTS short_text text COLLATE "C"
    GENERATED ALWAYS AS (CASE WHEN octet_length(text) <= 1200 THEN text END) STORED;

CREATE INDEX IF NOT EXISTS facts_texts ON facts (bucket, agent_id, scope, created_at DESC) INCLUDE (superseded_by, fact_id, confidence, short_text);
-- Found by `text`.
CREATE INDEX IF NOT EXISTS facts_long_texts ON facts (bucket, agent_id, scope) WHERE short_text IS NULL;
