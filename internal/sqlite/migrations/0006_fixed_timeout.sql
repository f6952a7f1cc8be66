-- Whether the end of a sandbox's life is an instant that no pause moves.
ALTER TABLE sandboxes ADD COLUMN fixed_timeout INTEGER NOT NULL DEFAULT 0;
