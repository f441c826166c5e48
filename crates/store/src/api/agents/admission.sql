-- $1 bucket, $2 agent. Returns one row.
SELECT coalesce(s.settings, '{}') AS settings,
       ceil(extract(epoch FROM a.backoff_next_run_at - clock_timestamp()) * 1000)::bigint AS left_ms,
       EXISTS (SELECT FROM budgets AS b WHERE b.tenant = antiphon_tenant_of($2)) AS has_budgets
FROM (SELECT) AS one
LEFT JOIN (SELECT settings FROM agent_settings WHERE bucket = $1 AND agent_id = $2) AS s ON true
LEFT JOIN (SELECT backoff_next_run_at FROM agents WHERE bucket = $1 AND agent_id = $2) AS a ON true
