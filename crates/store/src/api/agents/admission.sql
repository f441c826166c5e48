-- $1 bucket, $2 agent. One row at most.
SELECT coalesce(s.settings, '{}') AS settings,
       ceil(extract(epoch FROM a.backoff_next_run_at - clock_timestamp()) * 1000)::bigint AS left_ms
FROM (SELECT settings FROM agent_settings WHERE bucket = $1 AND agent_id = $2) AS s
FULL JOIN (SELECT backoff_next_run_at FROM agents WHERE bucket = $1 AND agent_id = $2) AS a ON true
