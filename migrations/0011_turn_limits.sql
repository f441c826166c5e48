-- Limits of turns: how many of a workflow, a model or a tenant run at once, and how fast they begin. What the limits are stands in a file of
-- the workers; here is what is used of them. Turns without a limit never come here.

CREATE TABLE turn_limits (
    -- 'workflow:<name>', 'model:<name>' or 'tenant:<name>'.
    key          text             PRIMARY KEY,
    -- How many turns may begin and how many tokens be used at once, as of then; more every second, up to those of a minute. Tokens of turns
    -- that have ended can make it less than nothing.
    turns_left   double precision NOT NULL,
    tokens_left  double precision NOT NULL,
    refilled_at  timestamptz      NOT NULL
);

-- The turns that run and come under a limit, by the worker that has them. Those of a worker that has died stay, so that who goes on with one
-- finds that it is counted.
CREATE TABLE turn_limit_turns (
    key       text NOT NULL,
    turn_id   text NOT NULL,
    worker_id text NOT NULL,
    PRIMARY KEY (key, turn_id)
);

-- Who commits the end of a turn knows nothing of the limits under which a worker before it had let it begin.
CREATE INDEX turn_limit_turns_turn ON turn_limit_turns (turn_id);

-- Turns of a worker that has not said for long that it is there do not count any more.
CREATE TABLE turn_limit_workers (
    worker_id  text        PRIMARY KEY,
    held_until timestamptz NOT NULL
);

-- Lets a turn begin that comes under all of these limits, whose keys are in their order, and counts it; else says in how many ms it may be
-- tried again. NULL in place of a number: no such limit.
CREATE FUNCTION antiphon_admit_turn(
    worker text, held_for interval, turn text, keys text[], at_once bigint[], turns_a_minute bigint[], tokens_a_minute bigint[], busy_ms bigint
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    found   turn_limits;
    now_at  timestamptz;
    minutes double precision;
    running bigint;
    wait_ms double precision := 0;
BEGIN
    IF NOT EXISTS (SELECT FROM turn_limit_workers AS w WHERE w.worker_id = worker AND w.held_until > clock_timestamp()) THEN
        INSERT INTO turn_limit_workers AS w (worker_id, held_until) VALUES (worker, clock_timestamp() + held_for)
        ON CONFLICT (worker_id) DO UPDATE SET held_until = excluded.held_until;
    END IF;
    -- It runs already: a worker before this one had let it begin.
    UPDATE turn_limit_turns AS t SET worker_id = worker WHERE t.key = ANY (keys) AND t.turn_id = turn;
    GET DIAGNOSTICS running = ROW_COUNT;
    IF running = cardinality(keys) THEN
        RETURN NULL;
    END IF;
    FOR i IN 1 .. cardinality(keys) LOOP
        -- Locks the row until the statement has ended.
        INSERT INTO turn_limits AS l (key, turns_left, tokens_left, refilled_at)
        VALUES (keys[i], coalesce(turns_a_minute[i], 0), coalesce(tokens_a_minute[i], 0), clock_timestamp())
        ON CONFLICT (key) DO UPDATE SET key = l.key
        RETURNING l.* INTO found;
        now_at := clock_timestamp();
        minutes := greatest(0, extract(epoch FROM now_at - found.refilled_at)) / 60;
        -- Of what has no limit nothing is left, so that one which comes later owes nothing.
        found.turns_left := coalesce(least(turns_a_minute[i], found.turns_left + minutes * turns_a_minute[i]), 0);
        -- No more is owed than the tokens of an hour: the limit of a model or a workflow concerns several tenants, and what one of them has
        -- reported must not keep the others waiting for longer.
        found.tokens_left := coalesce(least(tokens_a_minute[i], greatest(found.tokens_left, -60 * tokens_a_minute[i])
                                                                + minutes * tokens_a_minute[i]), 0);
        UPDATE turn_limits
        SET turns_left = found.turns_left, tokens_left = found.tokens_left, refilled_at = now_at
        WHERE key = keys[i];
        IF found.turns_left < 1 AND turns_a_minute[i] IS NOT NULL THEN
            wait_ms := greatest(wait_ms, (1 - found.turns_left) * 60000 / turns_a_minute[i]);
        END IF;
        IF found.tokens_left < 1 AND tokens_a_minute[i] IS NOT NULL THEN
            wait_ms := greatest(wait_ms, (1 - found.tokens_left) * 60000 / tokens_a_minute[i]);
        END IF;
        IF at_once[i] IS NOT NULL THEN
            SELECT count(*) INTO running
            FROM turn_limit_turns AS t
            JOIN turn_limit_workers AS w USING (worker_id)
            WHERE t.key = keys[i] AND t.turn_id <> turn AND w.held_until > now_at;
            IF running >= at_once[i] THEN
                wait_ms := greatest(wait_ms, busy_ms);
            END IF;
        END IF;
    END LOOP;
    IF wait_ms > 0 THEN
        -- Of one that was counted under some of them, before there were others.
        DELETE FROM turn_limit_turns AS t WHERE t.key = ANY (keys) AND t.turn_id = turn;
        RETURN ceil(wait_ms);
    END IF;
    UPDATE turn_limits AS l SET turns_left = l.turns_left - 1
    FROM unnest(keys, turns_a_minute) AS k (key, a_minute)
    WHERE l.key = k.key AND k.a_minute IS NOT NULL;
    INSERT INTO turn_limit_turns AS t (key, turn_id, worker_id)
    SELECT k, turn, worker FROM unnest(keys) AS k
    ON CONFLICT (key, turn_id) DO UPDATE SET worker_id = excluded.worker_id;
    RETURN NULL;
END
$$;

DO $$
DECLARE
    everything CONSTANT text := 'current_setting(''antiphon.tenant'', true) = ''*''';
    of text;
BEGIN
    FOREACH of IN ARRAY ARRAY['turn_limits', 'turn_limit_turns', 'turn_limit_workers'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', of);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', of);
        EXECUTE format('CREATE POLICY tenant_isolation ON %I USING (%s) WITH CHECK (%s)', of, everything, everything);
    END LOOP;
END
$$;
