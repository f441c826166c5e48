-- Arrays: $1 bucket, $2 agent. A row for each that has settings.
SELECT k.number, s.workflow, s.settings
FROM unnest($1::smallint[], $2::text[]) WITH ORDINALITY AS k (bucket, agent_id, number)
CROSS JOIN LATERAL (
    SELECT s.workflow, s.settings FROM agent_settings AS s
    WHERE s.bucket = k.bucket AND s.agent_id = k.agent_id
    OFFSET 0
) AS s
