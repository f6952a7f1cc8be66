package ringfence

import (
	"strings"
	"time"
)

// SnapshotIDPrefix starts the id of every snapshot; a sandbox id's letters follow.
const SnapshotIDPrefix = "snap_"

// NewSnapshotID returns a fresh id.
func NewSnapshotID() string { return SnapshotIDPrefix + NewSandboxID() }

// ValidSnapshotID reports whether id is spelled as a snapshot id.
func ValidSnapshotID(id string) bool {
	rest, ok := strings.CutPrefix(id, SnapshotIDPrefix)
	return ok && ValidSandboxID(rest)
}

// Snapshot is a sandbox's memory and written disk at one instant. Any number of
// sandboxes can start from it, and it outlives the one that it is of.
type Snapshot struct {
	ID        string // snap_[a-z0-9]{20}
	Project   string
	Name      string
	SandboxID string            // whose it is
	Template  string            // canonical name
	ImagePath string            // EROFS image, content-addressed
	BaseEnv   map[string]string // the template's
	Size      Size
	User      string
	WorkDir   string
	Object    string // content on disk: SHA-256 in hex
	Bytes     int64  // what the content takes on disk
	Hidden    bool   // of an operation that is under way; never shown
	CreatedAt time.Time
}

// SnapshotFilter selects snapshots of one project, newest first.
type SnapshotFilter struct {
	Project   string
	SandboxID string // empty: of all sandboxes
	Limit     int    // how many; 1 or more
	Before    *SandboxCursor
}
