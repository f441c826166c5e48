-- Inputs that the commit itself opens. A new owner finds them with the saved ones.
, opened AS (
    INSERT INTO spilled_turns (bucket, thread_id, turn_id, agent_id, run, content, metadata, options, origin, stream_seq,
                               incarnation, came_at)
    SELECT i.bucket, i.thread_id, i.turn_id, i.agent_id, i.run, i.content, i.metadata::jsonb, i.options::jsonb, i.origin::jsonb,
           i.stream_seq, i.incarnation, clock_timestamp()
    FROM opened_turn_rows AS i
    -- The thread may have been erased after the owner had decided this.
    WHERE NOT EXISTS (SELECT FROM erased_threads AS e
                      WHERE e.bucket = i.bucket AND e.thread_id = i.thread_id AND e.recreated_at IS NULL
                      OFFSET 0)
      AND NOT EXISTS (SELECT FROM erased_tenants AS z WHERE z.tenant = antiphon_tenant_of(i.thread_id) OFFSET 0)
    ON CONFLICT (bucket, thread_id, turn_id) DO NOTHING
)
