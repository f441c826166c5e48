-- The threads of an agent, for lists over all of them. A thread that names no agent is its own.
CREATE INDEX threads_agent ON threads (agent_id, bucket, thread_id) WHERE agent_id IS NOT NULL;
