-- What a client asks of the model for one turn: it survives a takeover, and a retry asks for the same.
ALTER TABLE open_turns ADD COLUMN parameters jsonb NOT NULL DEFAULT '{}';
ALTER TABLE failed_turns ADD COLUMN parameters jsonb NOT NULL DEFAULT '{}';
