-- Arrays: $1 kind, $2 bucket, $3 agent or thread, $4 turn, task or act, $5 run of a turn, $6 input
-- message of a turn, $7 the task itself, or the task that an act is about; $8 bucket and $9 thread
-- whose text a task carries, or the agent of an act's queue. $10 partition and $11 epoch of the
-- asking owner, or NULL. $12 the timer that fired a turn. Returns one row for each, in their order.
--
-- OFFSET 0 makes each look-up use the key, whatever table sizes the planner assumes. CASE restricts
-- look-ups to those of the kind.
SELECT CASE k.kind
           -- Every committed turn has its input in the history, whatever its run, unless retention
           -- has deleted the input.
           WHEN 'turn' THEN
               EXISTS (SELECT FROM messages AS m
                       WHERE m.bucket = k.bucket AND m.thread_id = k.subject_id AND m.message_id = k.input_id
                       OFFSET 0)
               OR EXISTS (SELECT FROM expired_messages AS r
                          WHERE r.bucket = k.bucket AND r.message_id = k.input_id AND r.thread_id = k.subject_id
                          OFFSET 0)
               OR EXISTS (SELECT FROM failed_turns AS f
                          WHERE f.bucket = k.bucket AND f.thread_id = k.subject_id AND f.turn_id = k.id AND f.run >= k.run
                          OFFSET 0)
               OR EXISTS (SELECT FROM spilled_turns AS o
                          WHERE o.bucket = k.bucket AND o.thread_id = k.subject_id AND o.turn_id = k.id
                          OFFSET 0)
               -- A withdrawn follow-up leaves no other trace.
               OR CASE WHEN k.timer_id IS NOT NULL THEN
                      EXISTS (SELECT FROM timers AS w
                              WHERE w.bucket = k.bucket AND w.timer_id = k.timer_id AND w.thread_id = k.subject_id
                                AND w.state = 'withdrawn'
                              OFFSET 0) ELSE false END
           -- After seven days the id of a completed task may be used for another task.
           WHEN 'task' THEN
               CASE WHEN t.position IS NULL THEN false
                    WHEN t.created_at >= clock_timestamp() - interval '7 days' THEN true
                    ELSE NOT EXISTS (SELECT FROM agents AS a
                                     WHERE a.bucket = k.bucket AND a.agent_id = k.subject_id
                                       AND a.head_position >= t.position
                                     OFFSET 0)
                         OR EXISTS (SELECT FROM failed_tasks AS f
                                    WHERE f.bucket = k.bucket AND f.agent_id = k.subject_id AND f.position = t.position
                                    OFFSET 0) END
           ELSE
               EXISTS (SELECT FROM audit_log AS a
                       WHERE a.bucket = k.bucket AND a.subject_id = k.subject_id AND a.command_id = k.id
                       OFFSET 0)
       END AS is_known,
       -- Late commands for an erased tenant or thread are dropped: if they were refused, they would
       -- be kept as dead letters.
       EXISTS (SELECT FROM erased_tenants AS z WHERE z.tenant = antiphon_tenant_of(k.subject_id) OFFSET 0)
       OR k.kind <> 'act' AND EXISTS (SELECT FROM erased_threads AS e
                                   WHERE e.bucket = k.bucket AND e.thread_id = k.subject_id AND e.recreated_at IS NULL
                                   OFFSET 0)
       OR k.kind = 'task' AND k.origin_id IS NOT NULL AND EXISTS (SELECT FROM erased_threads AS e
                                              WHERE e.bucket = k.origin_bucket AND e.thread_id = k.origin_id
                                                AND e.recreated_at IS NULL
                                              OFFSET 0) AS is_erased,
       CASE k.kind
           WHEN 'turn' THEN
               EXISTS (SELECT FROM threads AS h WHERE h.bucket = k.bucket AND h.thread_id = k.subject_id OFFSET 0)
           WHEN 'task' THEN
               EXISTS (SELECT FROM agent_settings AS s WHERE s.bucket = k.bucket AND s.agent_id = k.subject_id OFFSET 0)
           -- An act does not create an agent: the agent must have settings, a queue, or a thread
           -- that it answers in.
           ELSE
               EXISTS (SELECT FROM agents AS a WHERE a.bucket = k.bucket AND a.agent_id = k.subject_id OFFSET 0)
               OR EXISTS (SELECT FROM tasks AS q WHERE q.bucket = k.bucket AND q.agent_id = k.subject_id OFFSET 0)
               OR EXISTS (SELECT FROM agent_settings AS s
                          WHERE s.bucket = k.origin_bucket AND s.agent_id = k.origin_id OFFSET 0)
               OR EXISTS (SELECT FROM threads AS h
                          WHERE h.bucket = k.origin_bucket AND h.thread_id = k.origin_id AND h.agent_id IS NULL
                          OFFSET 0)
               OR EXISTS (SELECT FROM threads AS h WHERE h.agent_id = k.origin_id OFFSET 0)
       END AS has_subject,
       t.position, t.digest,
       EXISTS (SELECT FROM failed_tasks AS f
               WHERE f.bucket = k.bucket AND f.agent_id = k.subject_id AND f.position = t.position
               OFFSET 0) AS is_failed,
       $10::smallint IS NULL
       OR EXISTS (SELECT FROM partitions AS p WHERE p.partition_id = $10 AND p.epoch = $11::bigint AND p.owner IS NOT NULL) AS is_owner
FROM unnest($1::text[], $2::smallint[], $3::text[], $4::text[], $5::integer[], $6::text[], $7::text[],
            $8::smallint[], $9::text[], $12::text[])
     WITH ORDINALITY AS k (kind, bucket, subject_id, id, run, input_id, task_id, origin_bucket, origin_id, timer_id, number)
LEFT JOIN LATERAL (
    SELECT t.position, t.digest, t.created_at FROM task_ids AS t
    WHERE t.bucket = k.bucket AND t.agent_id = k.subject_id AND t.task_id = k.task_id
    OFFSET 0
) AS t ON true
ORDER BY k.number
