-- Why the answer of a call ended: stop, length, content_filter, tool_calls, stopped. NULL: the answer failed or was taken back, or the call is
-- older than this column. Words are short and few, so a check of each row would cost more than it finds.
ALTER TABLE usage ADD COLUMN finish_reason text COLLATE "C";
ALTER TABLE usage_days ADD COLUMN finish_reason text COLLATE "C";

DO $$
DECLARE
    -- Its name is given by Postgres.
    old text := (SELECT conname FROM pg_constraint WHERE conrelid = 'usage_days'::regclass AND contype = 'u');
BEGIN
    EXECUTE format('ALTER TABLE usage_days DROP CONSTRAINT %I', old);
END
$$;
ALTER TABLE usage_days ADD UNIQUE NULLS NOT DISTINCT (day_at, tenant, agent_id, kind, model, finish_reason);
