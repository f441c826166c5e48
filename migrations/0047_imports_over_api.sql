-- Imports over the API. Gateways may not write messages; one function does exactly this, with the rights of the owner: it imports a thread of
-- the caller's own tenant, or a part of one, and records who did it. It changes no content that is stored. The command that works on the database
-- calls the same function.

-- Parts of `antiphon_import_thread`, with the rights of their caller. Both take whole batches, a message per item of the arrays: $1 bucket,
-- $2 thread; $3 position, $4 message, $5 batch, $6 number in its batch, $7 batch type, $8 role, $9 content, $10 tool_calls, $11 tool_call_id,
-- $12 metadata, $13 token_count, $14 created_ms, $15 number in its thread (NULL: none), $16 started_after_ms (NULL: not known).

-- Appends batches in sequence after all messages of the thread, which is the usual case. Writes all of them and returns how many messages, or
-- returns no row if they cannot be appended.
CREATE FUNCTION antiphon_append_batches(
    smallint, text, bigint[], text[], bigint[], integer[], text[], text[], text[], text[], text[], text[], bigint[], bigint[], bigint[], integer[]
) RETURNS TABLE (count bigint)
    LANGUAGE sql
AS $$
WITH behind AS MATERIALIZED (
    SELECT t.bucket, t.thread_id, t.head_position, t.last_number,
           -- A thread must not assign a number twice.
           (SELECT bool_and(coalesce(n.number > coalesce(n.before, t.last_number), false))
            FROM (SELECT u.number, lag(u.number) OVER (ORDER BY u.place) AS before
                  FROM unnest($15) WITH ORDINALITY AS u (number, place)) AS n) AS keeps_numbers
    FROM threads AS t
    WHERE t.bucket = $1 AND t.thread_id = $2 AND coalesce(t.head_position, 0) < ($3)[1]
      AND NOT EXISTS (SELECT FROM erased_threads AS e WHERE e.bucket = $1 AND e.thread_id = $2 AND e.recreated_at IS NULL)
      -- A position contains milliseconds since the beginning of 2024.
      AND (($3)[cardinality($3)] >> 22) + 1704067200000 <= extract(epoch FROM clock_timestamp()) * 1000
    FOR NO KEY UPDATE
)
, written AS (
    INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, number, sequence_num, batch_type, role, content,
                          tool_calls, tool_call_id, metadata, token_count, parent_id, created_at, started_after_ms,
                          imported_at, parent_batch)
    SELECT $1, $2, i.position, i.message_id, i.batch_id,
           CASE WHEN b.keeps_numbers THEN i.number ELSE b.last_number + i.place END, i.sequence_num, i.batch_type, i.role, i.content,
           i.tool_calls::jsonb, i.tool_call_id, i.metadata::jsonb, i.token_count, coalesce(($3)[i.place - 1], b.head_position),
           to_timestamp(0) + i.created_ms * interval '1 millisecond', i.started_after_ms, clock_timestamp(), antiphon_parent_batch(i.metadata::jsonb)
    FROM unnest($3::bigint[], $4::text[], $5::bigint[], $6::integer[], $7::text[], $8::text[], $9::text[], $10::text[],
                $11::text[], $12::text[], $13::bigint[], $14::bigint[], $15::bigint[], $16::integer[]) WITH ORDINALITY
         AS i (position, message_id, batch_id, sequence_num, batch_type, role, content, tool_calls, tool_call_id, metadata,
               token_count, created_ms, number, started_after_ms, place),
         behind AS b
    RETURNING number, metadata -> 'synthetic' IS NOT DISTINCT FROM 'true'::jsonb AS is_hidden
)
UPDATE threads AS t
SET head_position = ($3)[cardinality($3)], message_count = t.message_count + (SELECT count(*) FROM written),
    hidden_count = t.hidden_count + (SELECT count(*) FROM written WHERE is_hidden),
    last_number = (SELECT max(number) FROM written)
FROM behind AS b
WHERE t.bucket = b.bucket AND t.thread_id = b.thread_id
RETURNING (SELECT count(*) FROM written) AS count
$$;

-- The general case, all or nothing: $17 batches of the same file that are stored already and extend beyond the first of these. Returns how many
-- messages are new, or the first batch that is refused, its message that differs, and why.
CREATE FUNCTION antiphon_insert_batches(
    smallint, text, bigint[], text[], bigint[], integer[], text[], text[], text[], text[], text[], text[], bigint[], bigint[], bigint[], integer[], bigint[]
) RETURNS TABLE (count bigint, batch_id bigint, other text, problem text)
    LANGUAGE sql
AS $$
-- The lock makes other writers that assign numbers in the thread wait.
WITH thread AS MATERIALIZED (
    SELECT t.last_number FROM threads AS t WHERE t.bucket = $1 AND t.thread_id = $2 FOR NO KEY UPDATE
)
, taken AS MATERIALIZED (
    SELECT i.position, i.message_id, i.batch_id, i.sequence_num, i.batch_type, i.role, i.content,
           i.tool_calls::jsonb AS tool_calls, i.tool_call_id, i.metadata::jsonb AS metadata, i.token_count, i.created_ms,
           i.number, i.started_after_ms, p.is_same, p.is_same IS NULL AND q.position IS NULL AS is_absent
    FROM unnest($3::bigint[], $4::text[], $5::bigint[], $6::integer[], $7::text[], $8::text[], $9::text[], $10::text[],
                $11::text[], $12::text[], $13::bigint[], $14::bigint[], $15::bigint[], $16::integer[])
         AS i (position, message_id, batch_id, sequence_num, batch_type, role, content, tool_calls, tool_call_id, metadata,
               token_count, created_ms, number, started_after_ms)
    -- OFFSET 0 makes these look-ups by key, whatever table size the planner assumes.
    LEFT JOIN LATERAL (
        SELECT (m.message_id, m.batch_id, m.sequence_num, m.batch_type, m.role, m.content, m.metadata,
                (extract(epoch FROM m.created_at) * 1000)::bigint)
               = (i.message_id, i.batch_id, i.sequence_num, i.batch_type, i.role, i.content, i.metadata::jsonb, i.created_ms)
               AND m.tool_calls IS NOT DISTINCT FROM i.tool_calls::jsonb
               AND m.tool_call_id IS NOT DISTINCT FROM i.tool_call_id
               AND m.token_count IS NOT DISTINCT FROM i.token_count
               -- Older exports have no start times.
               AND (i.started_after_ms IS NULL OR m.started_after_ms IS NOT DISTINCT FROM i.started_after_ms) AS is_same
        FROM messages AS m
        WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position = i.position
        OFFSET 0
    ) AS p ON true
    LEFT JOIN LATERAL (
        SELECT m.position FROM messages AS m
        WHERE m.bucket = $1 AND m.thread_id = $2 AND m.message_id = i.message_id
        OFFSET 0
    ) AS q ON true
)
, compared AS MATERIALIZED (
    SELECT t.batch_id, min(t.position) AS first, max(t.position) AS last, count(*) AS messages,
           bool_and(t.is_absent) AS is_absent, bool_and(coalesce(t.is_same, false)) AS is_same,
           min(t.message_id) FILTER (WHERE NOT t.is_absent AND NOT coalesce(t.is_same, false)) AS other
    FROM taken AS t
    GROUP BY t.batch_id
)
, problems AS MATERIALIZED (
    SELECT c.batch_id, c.other,
           CASE
               WHEN EXISTS (SELECT FROM erased_threads AS e WHERE e.bucket = $1 AND e.thread_id = $2 AND e.recreated_at IS NULL)
                   THEN 'erased'
               WHEN NOT c.is_same AND NOT c.is_absent THEN 'other'
               WHEN c.is_same AND c.messages < (
                   SELECT count(*)
                   FROM (SELECT FROM messages AS m
                         WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position >= c.batch_id AND m.batch_id = c.batch_id
                           AND NOT m.out_of_range
                           AND m.position < (SELECT coalesce((SELECT o.position FROM messages AS o
                                                              WHERE o.bucket = $1 AND o.thread_id = $2
                                                                AND o.position > c.batch_id AND o.batch_id <> c.batch_id
                                                              ORDER BY o.position LIMIT 1), 9223372036854775807))
                         UNION ALL
                         SELECT FROM messages AS m
                         WHERE m.bucket = $1 AND m.thread_id = $2 AND m.batch_id = c.batch_id AND m.out_of_range) AS stored)
                   THEN 'longer'
               -- A position contains milliseconds since the beginning of 2024.
               WHEN c.is_absent AND (c.last >> 22) + 1704067200000 > extract(epoch FROM clock_timestamp()) * 1000
                   THEN 'future'
               -- If messages of other batches follow the first new batch, they also follow the
               -- later ones.
               WHEN c.is_absent AND c.batch_id = (SELECT min(o.batch_id) FROM compared AS o WHERE o.is_absent)
                    AND EXISTS (SELECT FROM messages AS m
                                WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position > c.first
                                  AND (m.batch_id > c.batch_id
                                       OR m.batch_id <> ALL ($17::bigint[])
                                          AND m.batch_id NOT IN (SELECT o.batch_id FROM compared AS o))
                                OFFSET 0)
                   THEN 'before'
           END AS problem
    FROM compared AS c
)
, fresh AS MATERIALIZED (
    SELECT t.* FROM taken AS t
    WHERE t.is_absent AND NOT EXISTS (SELECT FROM problems AS p WHERE p.problem IS NOT NULL)
)
, began AS MATERIALIZED (SELECT min(position) AS position FROM fresh)
, around AS (
    -- The new messages, and the stored messages after the first new one. The latter belong to
    -- batches that extend beyond it.
    SELECT f.position, f.message_id, f.batch_id, f.sequence_num, f.batch_type, f.role, f.content, f.tool_calls,
           f.tool_call_id, f.metadata, f.token_count, f.created_ms, f.started_after_ms, f.number, true AS is_fresh
    FROM fresh AS f
    UNION ALL
    SELECT m.position, NULL, m.batch_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, m.number, false
    FROM messages AS m
    WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position > (SELECT b.position FROM began AS b)
)
, ordered AS (
    SELECT a.*, lag(a.position) OVER o AS before, lag(a.number) OVER o AS number_before,
           CASE WHEN lag(a.batch_id) OVER o IS DISTINCT FROM a.batch_id THEN 1 ELSE 0 END AS turns
    FROM around AS a
    WINDOW o AS (ORDER BY a.position)
)
, stretches AS (
    SELECT o.*, sum(o.turns) OVER (ORDER BY o.position) AS stretch FROM ordered AS o
)
, placed AS MATERIALIZED (
    -- A message is adjacent to its batch if no message of another batch lies between it and the
    -- start of its batch.
    SELECT s.*,
           NOT s.is_fresh
           OR s.stretch <> first_value(s.stretch) OVER b
           OR first_value(s.position) OVER b <> s.batch_id AS is_out_of_range
    FROM stretches AS s
    WINDOW b AS (PARTITION BY s.batch_id ORDER BY s.position)
)
, numbering AS MATERIALIZED (
    -- The numbers of the file are kept if they fit between those of the thread, and none of them
    -- belonged to a deleted message.
    SELECT coalesce((SELECT t.last_number FROM thread AS t), 0) AS last_number,
           bool_and(coalesce(
               p.number > coalesce(p.number_before, (SELECT m.number FROM messages AS m
                                                     WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position < p.position
                                                     ORDER BY m.position DESC LIMIT 1), 0)
               AND (NOT p.is_fresh OR p.number > (SELECT t.last_number FROM thread AS t)
                    OR p.position < (SELECT max(o.position) FROM placed AS o WHERE NOT o.is_fresh)), false)) AS keeps
    FROM placed AS p
)
, written AS (
    INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, number, sequence_num, batch_type, role, content,
                          tool_calls, tool_call_id, metadata, token_count, parent_id, created_at, out_of_range,
                          started_after_ms, imported_at, parent_batch)
    SELECT $1, $2, p.position, p.message_id, p.batch_id,
           CASE WHEN n.keeps THEN p.number ELSE n.last_number + row_number() OVER (ORDER BY p.position) END, p.sequence_num, p.batch_type, p.role, p.content,
           p.tool_calls, p.tool_call_id, p.metadata, p.token_count,
           coalesce(p.before, (SELECT m.position FROM messages AS m
                               WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position < p.position
                               ORDER BY m.position DESC LIMIT 1)),
           to_timestamp(0) + p.created_ms * interval '1 millisecond', p.is_out_of_range, p.started_after_ms, clock_timestamp(),
           antiphon_parent_batch(p.metadata)
    FROM placed AS p, numbering AS n
    WHERE p.is_fresh
    ORDER BY p.position
    RETURNING position, number, metadata -> 'synthetic' IS NOT DISTINCT FROM 'true'::jsonb AS is_hidden
)
, moved AS (
    UPDATE messages AS m
    SET out_of_range = true, parent_id = p.before
    FROM placed AS p
    WHERE NOT p.is_fresh AND m.bucket = $1 AND m.thread_id = $2 AND m.position = p.position
      AND (NOT m.out_of_range OR m.parent_id IS DISTINCT FROM p.before)
)
, head AS (
    INSERT INTO threads AS t (bucket, thread_id, head_position, message_count, hidden_count, last_number)
    SELECT $1, $2, max(w.position), count(*), count(*) FILTER (WHERE w.is_hidden), max(w.number) FROM written AS w HAVING count(*) > 0
    ON CONFLICT (bucket, thread_id) DO UPDATE
    SET head_position = greatest(t.head_position, excluded.head_position),
        message_count = t.message_count + excluded.message_count,
        hidden_count = t.hidden_count + excluded.hidden_count,
        last_number = greatest(t.last_number, excluded.last_number),
        revision = t.revision + 1
)
SELECT (SELECT count(*) FROM written) AS count, p.batch_id, p.other, p.problem
FROM (SELECT 1) AS one
LEFT JOIN (SELECT * FROM problems WHERE problem IS NOT NULL ORDER BY batch_id LIMIT 1) AS p ON true
$$;

-- Imports a compaction: $1 bucket, $2 thread, $3 compaction, $4 through, $5 kept, $6 summary, $7 strategy, $8 provenance, $9 previous,
-- $10 undone_at_position, $11 valid_from_position.
CREATE FUNCTION antiphon_import_compaction(
    smallint, text, bigint, bigint, bigint[], text, text, jsonb, bigint, bigint, bigint
) RETURNS text
    LANGUAGE sql
AS $$
WITH known AS MATERIALIZED (
    SELECT (c.through_position, c.kept_positions, c.strategy, c.provenance) = ($4, $5::bigint[], $7::text, $8::jsonb)
           AND ($6::text IS NULL OR c.summary IS NOT DISTINCT FROM $6) AND c.previous_id IS NOT DISTINCT FROM $9
           AND c.undone_at_position IS NOT DISTINCT FROM $10 AND c.valid_from_position = $11 AS is_same
    FROM compactions AS c
    WHERE c.bucket = $1 AND c.thread_id = $2 AND c.compaction_id = $3
)
, later AS MATERIALIZED (
    SELECT c.compaction_id FROM compactions AS c
    WHERE c.bucket = $1 AND c.thread_id = $2 AND c.compaction_id > $3
    LIMIT 1
)
, written AS (
    INSERT INTO compactions (bucket, thread_id, compaction_id, through_position, kept_positions, summary, strategy, provenance, previous_id,
                             valid_from_position, undone_at_position, actor)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8::jsonb, $9, $11, $10, 'import'
    WHERE NOT EXISTS (SELECT FROM known) AND NOT EXISTS (SELECT FROM later)
      AND ($3 >> 22) + 1704067200000 <= extract(epoch FROM clock_timestamp()) * 1000
      AND NOT EXISTS (SELECT FROM erased_threads AS e WHERE e.bucket = $1 AND e.thread_id = $2 AND e.recreated_at IS NULL)
    RETURNING 1
)
SELECT CASE WHEN (SELECT is_same FROM known) THEN 'same'
            WHEN EXISTS (SELECT FROM known) THEN 'other'
            WHEN EXISTS (SELECT FROM written) THEN 'written'
            WHEN EXISTS (SELECT FROM later) THEN 'before'
            WHEN ($3 >> 22) + 1704067200000 > extract(epoch FROM clock_timestamp()) * 1000 THEN 'future'
            ELSE 'erased' END AS outcome
$$;

-- Imports a thread, or a part of one, all or nothing. `named` has the agent, policy and metadata of a thread that begins; NULL: its beginning is
-- stored. The arrays are those of above; `follows`: each message begins a batch or continues the one before it, at a higher position. Of what is
-- stored in the same form nothing changes. The problem is NULL if all of it is stored now.
CREATE FUNCTION antiphon_import_thread(
    of_bucket smallint, of_thread text, named jsonb,
    positions bigint[], ids text[], batches bigint[], sequence_nums integer[], batch_types text[], roles text[], contents text[], calls text[],
    call_ids text[], metadatas text[], token_counts bigint[], created bigint[], numbers bigint[], started integer[],
    beside bigint[], follows boolean, highest_number bigint, new_compactions jsonb, follow_ups jsonb, of_command text, of_actor text
) RETURNS TABLE (
    is_new boolean, keeps_own boolean, new_messages bigint, compactions_written bigint,
    why text, refused_batch bigint, refused_message text, refused_compaction bigint
)
    LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    one jsonb;
    timers_written bigint;
BEGIN
    -- The owner of the tables, with whose rights this runs, may see all tenants: the caller may not, unless it may itself. Only such a caller
    -- imports without an entry in the audit log.
    IF (has_function_privilege(session_user, 'antiphon_all_tenants()'::regprocedure, 'EXECUTE')
        OR current_setting('antiphon.tenant', true) = antiphon_tenant_of(of_thread)
           AND antiphon_tenant_of(coalesce(named ->> 'agent_id', of_thread)) = antiphon_tenant_of(of_thread)
           AND of_actor IS NOT NULL AND of_command IS NOT NULL) IS NOT TRUE
    THEN
        RAISE EXCEPTION 'a tenant imports only into itself' USING ERRCODE = 'insufficient_privilege';
    END IF;
    BEGIN
        is_new := false;
        keeps_own := false;
        IF named IS NOT NULL THEN
            INSERT INTO threads (bucket, thread_id, agent_id, busy_policy, metadata)
            VALUES (of_bucket, of_thread, named ->> 'agent_id', named ->> 'busy_policy', named -> 'metadata')
            ON CONFLICT DO NOTHING;
            is_new := FOUND;
            IF NOT is_new THEN
                keeps_own := coalesce((
                    SELECT (t.agent_id, t.busy_policy, t.metadata)
                           IS DISTINCT FROM (named ->> 'agent_id', named ->> 'busy_policy', named -> 'metadata')
                    FROM threads AS t WHERE t.bucket = of_bucket AND t.thread_id = of_thread), false);
            END IF;
        END IF;

        new_messages := 0;
        IF cardinality(positions) > 0 THEN
            new_messages := NULL;
            IF follows THEN
                BEGIN
                    SELECT a.count INTO new_messages
                    FROM antiphon_append_batches(of_bucket, of_thread, positions, ids, batches, sequence_nums, batch_types, roles, contents, calls,
                                                 call_ids, metadatas, token_counts, created, numbers, started) AS a;
                EXCEPTION WHEN unique_violation THEN
                    -- An id exists already. The general case finds out which one.
                    new_messages := NULL;
                END;
            END IF;
            IF new_messages IS NULL THEN
                SELECT i.count, i.batch_id, i.other, i.problem INTO new_messages, refused_batch, refused_message, why
                FROM antiphon_insert_batches(of_bucket, of_thread, positions, ids, batches, sequence_nums, batch_types, roles, contents, calls,
                                             call_ids, metadatas, token_counts, created, numbers, started, beside) AS i;
            END IF;
        END IF;
        IF why IS NOT NULL THEN
            RAISE SQLSTATE 'AP001';
        END IF;

        UPDATE threads AS t SET last_number = highest_number
        WHERE t.bucket = of_bucket AND t.thread_id = of_thread AND t.last_number < highest_number;

        compactions_written := 0;
        FOR one IN SELECT e.value FROM jsonb_array_elements(new_compactions) WITH ORDINALITY AS e (value, place) ORDER BY e.place LOOP
            why := antiphon_import_compaction(
                of_bucket, of_thread, (one ->> 'id')::bigint, (one ->> 'through')::bigint,
                ARRAY(SELECT k.value::bigint FROM jsonb_array_elements_text(one -> 'kept') WITH ORDINALITY AS k (value, place) ORDER BY k.place),
                one ->> 'summary', one ->> 'strategy', one -> 'provenance', (one ->> 'previous')::bigint, (one ->> 'undone_at')::bigint,
                (one ->> 'counts_from')::bigint);
            IF why NOT IN ('written', 'same') THEN
                refused_compaction := (one ->> 'id')::bigint;
                RAISE SQLSTATE 'AP001';
            END IF;
            compactions_written := compactions_written + (why = 'written')::integer;
            why := NULL;
        END LOOP;

        -- A follow-up that waits is stored as cancelled, so that it does not fire here too.
        INSERT INTO timers (bucket, timer_id, kind, thread_id, agent_id, agent_bucket, state, body, created_at, due_at, ended_at, ended_by, fired_turn)
        SELECT of_bucket, f.timer_id, 'follow_up', of_thread, f.agent_id, f.agent_bucket,
               CASE WHEN f.state = 'pending' THEN 'cancelled' ELSE f.state END, f.body,
               'epoch'::timestamptz + f.created_ms * interval '1 ms', 'epoch'::timestamptz + f.due_ms * interval '1 ms',
               coalesce('epoch'::timestamptz + f.ended_ms * interval '1 ms', clock_timestamp()),
               CASE WHEN f.state = 'pending' THEN 'import' ELSE f.ended_by END, f.fired_turn
        FROM jsonb_to_recordset(follow_ups)
             AS f (timer_id text, agent_id text, agent_bucket smallint, state text, body jsonb, created_ms bigint, due_ms bigint,
                   ended_ms bigint, ended_by text, fired_turn text)
        ON CONFLICT (bucket, timer_id) DO NOTHING;
        GET DIAGNOSTICS timers_written = ROW_COUNT;

        -- Last, so that it finds a mark that was set while this ran.
        IF EXISTS (SELECT FROM erased_threads AS e WHERE e.bucket = of_bucket AND e.thread_id = of_thread AND e.recreated_at IS NULL) THEN
            why := 'erased';
            RAISE SQLSTATE 'AP001';
        END IF;
        IF of_actor IS NOT NULL AND (is_new OR new_messages > 0 OR compactions_written > 0 OR timers_written > 0) THEN
            INSERT INTO audit_log (bucket, subject_id, command_id, actor, action)
            VALUES (of_bucket, of_thread, of_command, of_actor, 'import_thread')
            -- A large thread comes in several parts.
            ON CONFLICT DO NOTHING;
        END IF;
    EXCEPTION WHEN SQLSTATE 'AP001' THEN
        -- The block is undone, its variables are not: `why` says what was refused.
        is_new := false;
        keeps_own := false;
        new_messages := 0;
        compactions_written := 0;
    END;
    RETURN NEXT;
END
$$;

REVOKE EXECUTE ON FUNCTION antiphon_append_batches(smallint, text, bigint[], text[], bigint[], integer[], text[], text[], text[], text[], text[], text[], bigint[], bigint[], bigint[], integer[]) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION antiphon_insert_batches(smallint, text, bigint[], text[], bigint[], integer[], text[], text[], text[], text[], text[], text[], bigint[], bigint[], bigint[], integer[], bigint[]) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION antiphon_import_compaction(smallint, text, bigint, bigint, bigint[], text, text, jsonb, bigint, bigint, bigint) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION antiphon_import_thread FROM PUBLIC;
-- Temporary tables are found last: a caller's own table `messages` must not be written with the rights of the owner.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION antiphon_import_thread SET search_path = %I, pg_temp', current_schema());
END
$$;
