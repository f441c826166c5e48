-- Idempotency keys go when they are old.
CREATE INDEX idempotency_keys_created_at ON idempotency_keys (created_at);
