-- Calls whose provider has not counted them, because their answer was stopped, failed or cut: what is known is an estimate of what they have used.
ALTER TABLE usage ADD COLUMN is_estimated boolean NOT NULL DEFAULT false;
ALTER TABLE usage_days ADD COLUMN estimated_calls bigint NOT NULL DEFAULT 0;

-- When the input came, which is before it was saved; NULL: saved before there was this column.
ALTER TABLE spilled_turns ADD COLUMN came_at timestamptz;
