package ringfence

import "time"

// Sandbox is one isolated machine.
type Sandbox struct {
	ID       string // [a-z0-9]{20}
	Project  string
	Name     string
	Template string // canonical name of the template
	// ImagePath and BaseEnv are the template's when the sandbox was made: it may be
	// built anew meanwhile.
	ImagePath  string
	BaseEnv    map[string]string
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
	ExpiresAt  time.Time // when the running period ends; zero: no life limit, or paused without a fixed timeout
	PausedAt   time.Time // zero unless it is paused
	Deadlines  Deadlines
	Object     string   // content of the snapshot that a paused sandbox is in
	Generation int64    // grows with every state change; guards against stale writers
	TokenHash  [32]byte // SHA-256 of the access token
	// IdempotencyKey is what its creator named the create by; Fingerprint tells what was
	// asked for. Both are empty when it was not named.
	IdempotencyKey string
	Fingerprint    string
}

// OnTimeout says what happens when a running period has lasted for its timeout.
type OnTimeout string

// What can happen then.
const (
	OnTimeoutKill  OnTimeout = "kill"
	OnTimeoutPause OnTimeout = "pause"
)

// Deadlines are the times after which something happens to a sandbox by itself.
type Deadlines struct {
	Timeout      time.Duration  // life of a running period, from its start; 0: none
	OnTimeout    OnTimeout      // what happens then, and after IdleTimeout
	IdleTimeout  time.Duration  // of a running sandbox with which nobody does anything; 0: none
	AutoDelete   *time.Duration // after it was paused; nil: none, 0: at once
	NoAutoResume bool           // a call on the paused sandbox is refused instead of waking it
	// FixedTimeout: Timeout counts from the creation, or from when it was set, and no pause
	// moves the end. With OnTimeoutKill it is the end of a paused sandbox too; one that is
	// resumed after it gets another Timeout.
	FixedTimeout bool
}

// Expires returns when a running period that begins now ends; the zero time: never.
func (d Deadlines) Expires(begin time.Time) time.Time {
	if d.Timeout <= 0 {
		return time.Time{}
	}
	return begin.Add(d.Timeout).Truncate(time.Microsecond)
}

// ExpiresAgain returns when a running period ends that begins now, after a pause; before is
// when the one before it would have ended.
func (d Deadlines) ExpiresAgain(begin, before time.Time) time.Time {
	if d.FixedTimeout && begin.Before(before) {
		return before
	}
	return d.Expires(begin)
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
	At         time.Time // becomes StartedAt, PausedAt or EndedAt
	// Object, when set, becomes the sandbox's; a sandbox that is running has none.
	Object string
	// ExpiresAt becomes the sandbox's when To is running.
	ExpiresAt time.Time
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
