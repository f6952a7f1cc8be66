-- Ports of sandboxes that their owner opened to everybody.
CREATE TABLE public_ports (
  sandbox TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
  port INTEGER NOT NULL CHECK (port BETWEEN 1 AND 65535),
  PRIMARY KEY (sandbox, port)
) STRICT, WITHOUT ROWID;
