-- The run of the command that erases the thread, until all of it is gone: so long it is not named anew, or what was erased would come into the new
-- thread. NULL: none, as in rows of before.
ALTER TABLE erased_threads ADD COLUMN erasing text;
-- Which user's threads that run erases, as a hash of tenant and user, so that the next run finds those of one that did not come to its end.
ALTER TABLE erased_threads ADD COLUMN erasing_user bytea;
