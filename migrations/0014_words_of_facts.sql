-- The words of facts stand in the index by which a search reads them: a thousand facts of a user are some thirty pages of it instead of a thousand
-- pages of the table.

-- NULL: too many for an entry of an index, which has at most 2,704 bytes, together with the scope. Without the positions of the words, which a search does
-- not use. Each word has four bytes more than its letters, as text three.
ALTER TABLE facts ADD COLUMN words tsvector GENERATED ALWAYS AS (
    CASE WHEN octet_length(scope) + octet_length(strip(to_tsvector(language, text))::text) <= 1500 THEN strip(to_tsvector(language, text)) END
) STORED;

-- In place of `facts_scope`, which has the same key.
CREATE INDEX facts_words ON facts (bucket, agent_id, scope, created_at DESC) INCLUDE (superseded_by, fact_id, confidence, words);
DROP INDEX facts_scope;
-- Found by `search`.
CREATE INDEX facts_without_words ON facts (bucket, agent_id, scope) WHERE words IS NULL;

-- An index alone answers for pages that are known to be visible to all.
ALTER TABLE facts SET (autovacuum_vacuum_insert_scale_factor = 0.05);
