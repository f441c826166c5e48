-- What a client of the Responses protocol has asked of the model, by the fields of its request: its response says it again.
ALTER TABLE responses ADD COLUMN options jsonb NOT NULL DEFAULT '{}';
