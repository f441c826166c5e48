-- $1, $2 after this bucket and agent, $3 limit, $4 of this tenant only ('-': the default tenant) or NULL. Without an index: the owners' updates must stay heap-only.
SELECT bucket, agent_id FROM agents
WHERE (bucket, agent_id) > ($1, $2) AND backoff_next_run_at > clock_timestamp()
  AND ($4 IS NULL OR antiphon_tenant_of(agent_id) = $4)
ORDER BY bucket, agent_id
LIMIT $3
