-- What had come of an answer when its turn failed: shown with the failed turn, and in no history.
ALTER TABLE failed_turns ADD COLUMN partial text NOT NULL DEFAULT '';
