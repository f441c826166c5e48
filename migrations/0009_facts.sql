-- What agents remember. Written in the commit of the memory task that has found it, and over HTTP.

CREATE TABLE facts (
    -- Of the queue of the agent's memory tasks, so that one partition writes them.
    bucket               smallint    NOT NULL,
    agent_id             text        NOT NULL,
    -- Of a turn: the answer and the number of the fact, so that a repeat is harmless.
    fact_id              text        NOT NULL,
    -- For whom it is used: 'user:…' by `user_id` in the metadata of the thread, else 'thread:…'; 'agent' for all threads of the agent.
    scope                text        NOT NULL,
    -- Whose turn it was found in, or in which alone it counts.
    thread_id            text,
    -- NULL: it was given over HTTP.
    assistant_message_id text,
    text                 text        NOT NULL,
    kind                 text        NOT NULL,
    confidence           real        NOT NULL CHECK (confidence BETWEEN 0 AND 1),
    language             regconfig   NOT NULL DEFAULT 'simple',
    search               tsvector    GENERATED ALWAYS AS (to_tsvector(language, text)) STORED,
    -- The fact that has taken its place.
    superseded_by        text,
    created_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, agent_id, fact_id)
);

-- Few of a scope are kept, so that a search reads all of them, and costs the same however many others there are.
CREATE INDEX facts_scope ON facts (bucket, agent_id, scope, created_at DESC);
-- Erased with the thread.
CREATE INDEX facts_thread ON facts (thread_id) WHERE thread_id IS NOT NULL;
-- Erased with the agent.
CREATE INDEX facts_agent ON facts (agent_id);
-- Deleted by age.
CREATE INDEX facts_created_at ON facts USING brin (created_at) WITH (pages_per_range = 32);

ALTER TABLE facts ENABLE ROW LEVEL SECURITY;
ALTER TABLE facts FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant_isolation ON facts
    USING (antiphon_tenant_visible(agent_id)) WITH CHECK (antiphon_tenant_visible(agent_id));
