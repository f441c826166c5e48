-- When a message was begun, as milliseconds from created_at: a turn's input is created when it is accepted and begun when the run begins that
-- answers it; any other message is begun when its first chunk comes and created when its last one does. NULL: not known, or more than 24 days.
-- Four bytes: all messages have it.
ALTER TABLE messages ADD COLUMN started_after_ms integer;
