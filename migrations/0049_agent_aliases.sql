-- Further names of agents, by which requests of OpenAI's libraries find them (`model`): the setting
-- `aliases` of each agent, written in the statement that writes the settings. A name belongs to one
-- agent of a tenant.
CREATE TABLE agent_aliases (
    -- '-': the default tenant.
    tenant   text COLLATE "C" NOT NULL,
    alias    text COLLATE "C" NOT NULL CHECK (octet_length(alias) BETWEEN 1 AND 256),
    -- The agent and its bucket.
    agent_bucket smallint NOT NULL,
    agent_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, alias),
    CHECK (tenant = antiphon_tenant_of(agent_id))
);

CREATE INDEX agent_aliases_agent ON agent_aliases (agent_id);

ALTER TABLE agent_aliases ENABLE ROW LEVEL SECURITY;
ALTER TABLE agent_aliases FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant_isolation ON agent_aliases
    USING (antiphon_tenant_visible(agent_id)) WITH CHECK (antiphon_tenant_visible(agent_id));
