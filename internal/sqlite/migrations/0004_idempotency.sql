-- What a creator named the create by. A create that failed gives the name free.
ALTER TABLE sandboxes ADD COLUMN idempotency_key TEXT;
ALTER TABLE sandboxes ADD COLUMN fingerprint TEXT NOT NULL DEFAULT '';
CREATE UNIQUE INDEX sandboxes_idempotency ON sandboxes (project, idempotency_key) WHERE idempotency_key IS NOT NULL;
