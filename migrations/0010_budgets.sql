-- Budgets: how much the calls of models may use in a day or a month. Written over HTTP; workers and gateways compare them with `usage`
-- before a turn begins, and nothing of them is written in the commits of turns.

CREATE TABLE budgets (
    -- '-': the default one. Without a bucket: a budget of a tenant is of all its threads.
    tenant         text        NOT NULL,
    name           text        NOT NULL,
    -- Whose calls count: 'tenant', 'agent:<agent>' or 'user:<user_id>', by `user_id` in the metadata of the thread.
    scope          text        NOT NULL,
    unit           text        NOT NULL CHECK (unit IN ('tokens', 'cost')),
    -- In tokens, or in the currency of the prices.
    max_amount     numeric     NOT NULL CHECK (max_amount >= 0),
    period         text        NOT NULL CHECK (period IN ('day', 'month')),
    -- IANA.
    time_zone      text        NOT NULL DEFAULT 'UTC',
    -- One more with each change.
    version        bigint      NOT NULL DEFAULT 1,
    -- The period of what is counted. One that is over is followed by the one in which it is noticed.
    period_start   timestamptz NOT NULL,
    period_end     timestamptz NOT NULL,
    -- Calls from the start of the period and before this are in `spent`; those since are summed whenever it is asked for.
    counted_to     timestamptz NOT NULL,
    spent          numeric     NOT NULL DEFAULT 0,
    -- Calls of models without a price, of which `spent` knows nothing.
    unpriced_calls bigint      NOT NULL DEFAULT 0,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, name)
);

-- Those that concern a turn.
CREATE INDEX budgets_scope ON budgets (tenant, scope);

ALTER TABLE budgets ENABLE ROW LEVEL SECURITY;
ALTER TABLE budgets FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant_isolation ON budgets
    USING (antiphon_tenant_visible(CASE tenant WHEN '-' THEN '' ELSE tenant || '~' END))
    WITH CHECK (antiphon_tenant_visible(CASE tenant WHEN '-' THEN '' ELSE tenant || '~' END));
