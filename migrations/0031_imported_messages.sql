-- When the message was imported from another system: retention counts its age from then.
ALTER TABLE messages ADD COLUMN imported_at timestamptz;
