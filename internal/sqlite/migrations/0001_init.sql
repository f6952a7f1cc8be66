-- Times are microseconds since 1970 in UTC, as the wire has six digits.

CREATE TABLE meta (
  name  TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT;

CREATE TABLE projects (
  id         TEXT PRIMARY KEY,
  name       TEXT NOT NULL UNIQUE,
  created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE api_keys (
  id           TEXT PRIMARY KEY,
  project      TEXT NOT NULL REFERENCES projects (id),
  name         TEXT NOT NULL,
  hash         BLOB NOT NULL UNIQUE,
  -- The first eight bytes of hash: rows are found by it, and then compared with
  -- the whole hash in constant time.
  lookup       INTEGER NOT NULL,
  created_at   INTEGER NOT NULL,
  last_used_at INTEGER
) STRICT;
CREATE INDEX api_keys_lookup ON api_keys (lookup);

CREATE TABLE sandboxes (
  id           TEXT PRIMARY KEY,
  project      TEXT NOT NULL REFERENCES projects (id),
  name         TEXT NOT NULL,
  template     TEXT NOT NULL,
  state        TEXT NOT NULL,
  reason       TEXT NOT NULL,
  detail       TEXT NOT NULL,
  vcpu         INTEGER NOT NULL,
  memory_mib   INTEGER NOT NULL,
  disk_mib     INTEGER NOT NULL,
  env          TEXT NOT NULL, -- JSON object; emptied when the sandbox ends, as it may hold secrets
  metadata     TEXT NOT NULL, -- JSON object
  user         TEXT NOT NULL,
  work_dir     TEXT NOT NULL,
  network      TEXT NOT NULL, -- JSON object
  created_at   INTEGER NOT NULL,
  started_at   INTEGER,
  ended_at     INTEGER,
  expires_at   INTEGER,
  generation   INTEGER NOT NULL,
  token_hash   BLOB NOT NULL,
  token_lookup INTEGER NOT NULL
) STRICT;
CREATE INDEX sandboxes_newest ON sandboxes (project, created_at DESC, id DESC);
CREATE INDEX sandboxes_live ON sandboxes (state) WHERE ended_at IS NULL;
CREATE INDEX sandboxes_ended ON sandboxes (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX sandboxes_token ON sandboxes (token_lookup);
