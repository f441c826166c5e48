-- The audit log.
, audited AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, error)
    SELECT i.bucket, i.subject_id, i.command_id, i.actor, i.action, i.target,
           CASE WHEN i.error IS NULL AND i.action IN ('cancel_timer', 'snooze_timer')
                     -- The owner knows the state of a timer only while it is deciding about that
                     -- timer.
                     AND NOT EXISTS (SELECT FROM timers AS t
                                     WHERE t.bucket = i.bucket AND t.timer_id = i.target AND t.state = 'pending'
                                     OFFSET 0)
                THEN 'the timer does not wait any more' ELSE i.error END
    FROM audit_rows AS i
    ON CONFLICT (bucket, subject_id, command_id) DO NOTHING
)
