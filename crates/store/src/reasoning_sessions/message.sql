-- $1 bucket, $2 session, $3 number. Returns one row if the session exists, even if it has no such
-- message.
SELECT s.last_number, m.number, m.in_temp, m.role, m.content, m.thinking, m.signature, m.calls, m.call_details, m.answers, m.tool
FROM reasoning_sessions AS s
LEFT JOIN reasoning_messages AS m
    ON m.bucket = s.bucket AND m.session_id = s.session_id AND m.number = $3 AND m.number <= s.last_number
WHERE s.bucket = $1 AND s.session_id = $2
