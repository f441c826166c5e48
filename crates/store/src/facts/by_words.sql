-- $1 bucket, $2 agent, $3 bucket of the thread, $4 thread, $5 bucket of the agent's settings, $6 text, $7 most rows. Any word of the text may fit.
-- What follows takes the facts from `best`, and those that count in the thread from `scopes`; a user as in `8_facts.sql`.
WITH asked AS MATERIALIZED (
    SELECT left(w.lexeme, 4) AS beginning, jsonb_agg(w.lexeme) AS lexemes
    FROM unnest(tsvector_to_array(to_tsvector(
        coalesce((SELECT c.oid::regconfig FROM pg_ts_config AS c
                 JOIN agent_settings AS s ON c.cfgname = s.settings ->> 'memory_language'
                 WHERE s.bucket = $5 AND s.agent_id = $2 LIMIT 1), 'simple'::regconfig),
        $6))) AS w (lexeme)
    GROUP BY left(w.lexeme, 4)
)
-- What has none of the beginnings fits in no way, and is not taken apart. The words are an object: sessions of the store join by nested loops alone, and a
-- message may have hundreds of words.
, query AS MATERIALIZED (
    SELECT string_agg('''' || replace(replace(beginning, '\', '\\'), '''', '''''') || ''''
                      || CASE WHEN length(beginning) = 4 THEN ':*' ELSE '' END, ' | ')::tsquery AS words,
           jsonb_object_agg(beginning, lexemes) AS lexemes
    FROM asked
)
, scopes AS MATERIALIZED (
    SELECT 'agent' AS scope
    UNION ALL
    SELECT coalesce('user:' || (SELECT t.metadata ->> 'user_id' FROM threads AS t
                                WHERE t.bucket = $3 AND t.thread_id = $4 AND octet_length(t.metadata ->> 'user_id') <= 256),
                    'thread:' || $4)
)
-- A word fits that is asked for, and one of which one begins with the other (compounds, endings that the language does not know), by the share of the
-- letters that they have in common. A word that many facts have says little about any of them. Of facts with too many words for their index the second
-- part reads the table.
, fitting AS MATERIALIZED (
    SELECT f.fact_id, f.confidence, f.created_at,
           least(length(k.lexeme), length(a.lexeme))::float8 / greatest(length(k.lexeme), length(a.lexeme))
           / sqrt(count(*) OVER (PARTITION BY k.lexeme COLLATE "C", a.lexeme COLLATE "C")) AS weight
    FROM scopes AS s
    CROSS JOIN query AS q
    CROSS JOIN LATERAL (
        SELECT o.fact_id, o.confidence, o.created_at, o.words
        FROM facts AS o
        WHERE o.bucket = $1 AND o.agent_id = $2 AND o.scope = s.scope AND o.superseded_by IS NULL AND o.words @@ q.words
        UNION ALL
        SELECT o.fact_id, o.confidence, o.created_at, o.search
        FROM facts AS o
        WHERE o.bucket = $1 AND o.agent_id = $2 AND o.scope = s.scope AND o.superseded_by IS NULL AND o.words IS NULL AND o.search @@ q.words
        OFFSET 0
    ) AS f
    CROSS JOIN LATERAL (
        SELECT w.lexeme FROM (SELECT unnest(tsvector_to_array(f.words)) AS lexeme) AS w WHERE q.lexemes ? left(w.lexeme, 4) OFFSET 0
    ) AS k
    CROSS JOIN LATERAL jsonb_array_elements_text(q.lexemes -> left(k.lexeme, 4)) AS a (lexeme)
    WHERE a.lexeme = k.lexeme OR length(k.lexeme) >= 4 AND (starts_with(a.lexeme, k.lexeme) OR starts_with(k.lexeme, a.lexeme))
)
, best AS MATERIALIZED (
    SELECT f.fact_id, f.created_at, sum(f.weight) * f.confidence AS rank
    FROM fitting AS f
    GROUP BY f.fact_id, f.confidence, f.created_at
    ORDER BY rank DESC, f.created_at DESC, f.fact_id
    LIMIT $7
)
