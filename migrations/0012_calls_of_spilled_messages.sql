-- The calls of models that attempts before the saved one have made, as chunks list them; NULL: none. What they have used was paid for, so
-- that the ledger needs it when the answer ends, also under another owner of the partition.
ALTER TABLE spilled_messages ADD COLUMN earlier_calls jsonb;
