-- $1 bucket, $2 agent, $3 position and $4 text of unreadable tasks. This needs no lease: a mark
-- does not change the queue's head, and operators can lift it.
INSERT INTO failed_tasks (bucket, agent_id, position, code, text)
SELECT t.bucket, t.agent_id, t.position, 'rejected_by_database', i.text
FROM unnest($1::smallint[], $2::text[], $3::bigint[], $4::text[]) AS i (bucket, agent_id, position, text)
JOIN tasks AS t ON t.bucket = i.bucket AND t.agent_id = i.agent_id AND t.position = i.position
ON CONFLICT (bucket, agent_id, position) DO NOTHING
