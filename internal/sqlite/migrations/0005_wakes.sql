-- Whether somebody without a credential wakes the paused sandbox of a public port.
ALTER TABLE public_ports ADD COLUMN wakes INTEGER NOT NULL DEFAULT 0 CHECK (wakes IN (0, 1));
