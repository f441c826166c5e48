-- Arrays: $1 bucket, $2 agent. Returns the rules of those agents that have rules.
SELECT s.agent_id, s.settings -> 'retention' AS rules
FROM unnest($1::smallint[], $2::text[]) AS k (bucket, agent_id)
JOIN agent_settings AS s ON s.bucket = k.bucket AND s.agent_id = k.agent_id
WHERE jsonb_typeof(s.settings -> 'retention') = 'object'
