-- The command that erases the thread, until all of it is gone: so long it is not named anew, or what was erased would come into the new thread.
-- NULL: none, as in rows of before.
ALTER TABLE erased_threads ADD COLUMN erasing text;
