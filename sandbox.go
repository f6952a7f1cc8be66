package ringfence

import "time"

// Sandbox is one isolated machine.
type Sandbox struct {
	ID         string // [a-z0-9]{20}
	Project    string
	Name       string
	Template   string // canonical name of the template
	State      State
	Reason     Reason // why it ended; empty while it lives
	Detail     string // one sentence about the end, safe to show
	Size       Size
	Env        map[string]string // given to every command, under the command's own
	Metadata   map[string]string
	User       string // who runs commands unless a command says otherwise
	WorkDir    string // where commands start unless a command says otherwise
	Network    NetworkPolicy
	CreatedAt  time.Time
	StartedAt  time.Time // zero until it runs
	EndedAt    time.Time // zero until it ended
	ExpiresAt  time.Time // zero: no life limit
	Generation int64     // grows with every state change; guards against stale writers
	TokenHash  [32]byte  // SHA-256 of the access token
}

// Size is what a sandbox may use. Each is a hard limit.
type Size struct {
	VCPU      int   // cores, 1 or more
	MemoryMiB int64 // what the guest reports as its total memory
	DiskMiB   int64 // what can be written; a write beyond it gets ENOSPC
}

// Default and smallest sizes. Operators set the largest.
const (
	DefaultVCPU      = 2
	DefaultMemoryMiB = 2048
	DefaultDiskMiB   = 8192
	MinMemoryMiB     = 128
	MinDiskMiB       = 16
)

// Limits of what a request may carry.
const (
	MaxNameLength     = 128       // bytes of a sandbox's name
	MaxEnvEntries     = 512       // entries of env
	MaxEnvBytes       = 128 << 10 // bytes of all env keys and values: they travel in one frame
	MaxMetadataItems  = 64        // entries of metadata
	MaxMetadataBytes  = 16 << 10  // bytes of all metadata keys and values
	MaxTimeoutSeconds = 365 * 24 * 3600
	MaxPathBytes      = 4096
)

// Move is one change of state. It takes effect only if the sandbox is still in
// From at Generation, so that a stale actor can never hit a newer state.
type Move struct {
	ID         string
	Generation int64
	From, To   State
	Reason     Reason // set when To is an end
	Detail     string
	At         time.Time // becomes StartedAt or EndedAt
}

// SandboxFilter selects sandboxes of one project, newest first.
type SandboxFilter struct {
	Project  string
	States   []State           // empty: all that have not ended
	Metadata map[string]string // every pair has to match
	Limit    int               // how many; 1 or more
	Before   *SandboxCursor    // only those older than this one
}

// SandboxCursor is a place in the order of creation.
type SandboxCursor struct {
	CreatedAt time.Time
	ID        string
}

// KeepEnded is how long the record of an ended sandbox is kept.
const KeepEnded = 7 * 24 * time.Hour
