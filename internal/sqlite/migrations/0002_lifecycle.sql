-- What a sandbox was made of, since its template may be built anew.
ALTER TABLE sandboxes ADD COLUMN image_path TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN base_env TEXT NOT NULL DEFAULT '{}'; -- JSON object

-- Times of what happens by itself are microseconds; NULL means none.
ALTER TABLE sandboxes ADD COLUMN paused_at INTEGER;
ALTER TABLE sandboxes ADD COLUMN timeout INTEGER;
ALTER TABLE sandboxes ADD COLUMN on_timeout TEXT NOT NULL DEFAULT 'kill';
ALTER TABLE sandboxes ADD COLUMN idle_timeout INTEGER;
ALTER TABLE sandboxes ADD COLUMN auto_delete INTEGER;
ALTER TABLE sandboxes ADD COLUMN no_auto_resume INTEGER NOT NULL DEFAULT 0;
-- SHA-256 of the content that a paused sandbox is in.
ALTER TABLE sandboxes ADD COLUMN object TEXT NOT NULL DEFAULT '';

CREATE TABLE snapshots (
  id         TEXT PRIMARY KEY,
  project    TEXT NOT NULL REFERENCES projects (id),
  name       TEXT NOT NULL,
  sandbox    TEXT NOT NULL, -- whose row may be gone
  template   TEXT NOT NULL,
  image_path TEXT NOT NULL,
  base_env   TEXT NOT NULL,
  vcpu       INTEGER NOT NULL,
  memory_mib INTEGER NOT NULL,
  disk_mib   INTEGER NOT NULL,
  user       TEXT NOT NULL,
  work_dir   TEXT NOT NULL,
  object     TEXT NOT NULL,
  bytes      INTEGER NOT NULL,
  hidden     INTEGER NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX snapshots_newest ON snapshots (project, created_at DESC, id DESC);
