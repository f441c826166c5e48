-- $1 bucket, $2 agent. Returns one row.
SELECT coalesce(s.settings, '{}') AS settings,
       ceil(extract(epoch FROM a.backoff_next_run_at - clock_timestamp()) * 1000)::bigint AS left_ms,
       EXISTS (SELECT FROM budgets AS b WHERE b.tenant = antiphon_tenant_of($2)) AS has_budgets,
       s.settings IS NOT NULL OR a.is_known
       OR EXISTS (SELECT FROM tasks AS t WHERE t.bucket = $1 AND t.agent_id = $2) AS is_known
FROM (SELECT) AS one
LEFT JOIN (SELECT settings FROM agent_settings WHERE bucket = $1 AND agent_id = $2) AS s ON true
LEFT JOIN (SELECT backoff_next_run_at, true AS is_known FROM agents WHERE bucket = $1 AND agent_id = $2) AS a ON true
