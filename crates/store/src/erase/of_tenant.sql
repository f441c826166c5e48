-- $1 tenant, `-` for the default one. Returns every id of the tenant in any table. Reads all tables
-- completely, which is acceptable because it is rare.
SELECT DISTINCT thread_id FROM (
    SELECT thread_id FROM threads
    UNION ALL SELECT thread_id FROM thread_list
    UNION ALL SELECT thread_id FROM feedback
    UNION ALL SELECT thread_id FROM spilled_turns
    UNION ALL SELECT thread_id FROM failed_turns
    UNION ALL SELECT thread_id FROM failed_messages
    UNION ALL SELECT thread_id FROM idempotency_keys
    UNION ALL SELECT thread_id FROM responses
    UNION ALL SELECT thread_id FROM usage
    UNION ALL SELECT agent_id FROM usage_days
    UNION ALL SELECT thread_id FROM spilled_messages
    UNION ALL SELECT thread_id FROM compactions
    UNION ALL SELECT coalesce(thread_id, agent_id) FROM timers
    UNION ALL SELECT agent_id FROM schedules
    UNION ALL SELECT antiphon_dead_letter_owner(thread_id, subject) FROM dead_letters
    UNION ALL SELECT agent_id FROM tasks
    UNION ALL SELECT agent_id FROM task_ids
    UNION ALL SELECT agent_id FROM agents
    UNION ALL SELECT agent_id FROM agent_settings
    UNION ALL SELECT agent_id FROM reasoning_sessions
    UNION ALL SELECT agent_id FROM facts
    UNION ALL SELECT thread_id FROM erased_threads WHERE erasing IS NOT NULL AND recreated_at IS NULL
    UNION ALL SELECT subject_id FROM audit_log WHERE subject_id NOT LIKE '%+reasoning' AND subject_id NOT LIKE '%+budget'
        AND subject_id NOT LIKE '%+key' AND subject_id NOT LIKE '%+tenant'
) AS ids
WHERE antiphon_tenant_of(thread_id) = $1
ORDER BY 1
