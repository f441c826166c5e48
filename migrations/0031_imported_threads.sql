-- When messages of another system were imported into the thread last: retention counts their age from then.
ALTER TABLE threads ADD COLUMN imported_at timestamptz;
