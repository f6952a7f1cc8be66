package ringfence

import "time"

// Command is something to run in a sandbox.
type Command struct {
	Shell   string   // run by the sandbox's shell …
	Args    []string // … or a program with its arguments; exactly one of both
	WorkDir string   // the sandbox's when empty
	User    string   // the sandbox's when empty
	Env     map[string]string
	Stdin   []byte // nil: /dev/null
	// Timeout is the deadline, owned by the host. 0: none.
	Timeout time.Duration
	Tag     string // the caller's own name for it
}

// CommandExit says how a command ended. Its own failure is a result, not an error.
type CommandExit struct {
	ID        string
	ExitCode  int           // 124: its deadline passed; 128+n: signal n
	Reason    CommandReason // empty when it exited by itself
	Signal    int           // 0: none
	StartedAt time.Time
	Duration  time.Duration
	// Lost counts bytes of output that nobody got because the link to the sandbox
	// had to be opened again in between.
	Lost uint64
}

// CommandReason says why a command did not exit by itself. The list is closed.
type CommandReason string

// The reasons.
const (
	CommandDeadline CommandReason = "deadline" // exit code 124
	CommandOOM      CommandReason = "oom"      // exit code 137: it took too much memory
	CommandSignal   CommandReason = "signal"   // exit code 128+n
)

// Stream is one of a command's two outputs.
type Stream int

// The streams.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

// Limits of a command.
const (
	DefaultCommandTimeout = 30 * time.Second
	DefaultOutputLimit    = 10 << 20 // bytes kept of each stream when the answer is one piece
	MaxOutputLimit        = 64 << 20
	MaxTagLength          = 128
)
