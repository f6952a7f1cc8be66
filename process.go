package ringfence

import "time"

// ProcessSpec is a process to start. Its Command says what and as whom; a Timeout of 0 is
// none. Without a command and with a PTY, it is the user's login shell.
type ProcessSpec struct {
	Command
	// KeepStdin: whether input can be written later. Without it and without a PTY, stdin
	// is what Command.Stdin holds and then its end.
	KeepStdin bool
	PTY       *TerminalSize // nil: pipes
	// LogBytes is how much of the output is kept, from MinLogBytes to MaxLogBytes; 0 means
	// DefaultLogBytes. A sandbox with many noisy processes keeps less of each.
	LogBytes int64
}

// TerminalSize is a terminal's size, each from 1 to MaxTerminalSize, and its type.
type TerminalSize struct {
	Cols, Rows uint16
	Term       string // DefaultTerm when empty
}

// Process is a process of a sandbox that was started through Ringfence.
type Process struct {
	ID         string
	PID        int // as programs in the sandbox see it; 0 when nothing could be executed
	Tag        string
	Command    string   // what runs, as text; arguments are quoted as for a shell
	Args       []string // nil for a shell command, and where they are too long to be kept
	WorkDir    string
	User       string
	PTY        bool
	StdinOpen  bool // whether input can be written
	StartedAt  time.Time
	DeadlineAt time.Time   // zero: none
	Exit       *ProcessEnd // nil while it runs
	// The output log holds the bytes from LogStart to LogEnd, both outputs counted together.
	LogStart, LogEnd uint64
}

// ProcessEnd says how a process ended.
type ProcessEnd struct {
	ExitCode int // 124: its deadline passed; 128+n: signal n
	Signal   int // 0: none
	Reason   CommandReason
	EndedAt  time.Time
}

// ProcessState is whether a process runs.
type ProcessState string

// The states.
const (
	ProcessRunning ProcessState = "running"
	ProcessEnded   ProcessState = "ended"
)

// State says whether the process runs.
func (p Process) State() ProcessState {
	if p.Exit != nil {
		return ProcessEnded
	}
	return ProcessRunning
}

// ProcessFilter selects processes. Empty fields select all.
type ProcessFilter struct {
	Tag   string
	State ProcessState
}

// Limits of processes.
const (
	DefaultLogBytes = 8 << 20
	MinLogBytes     = 64 << 10
	MaxLogBytes     = 64 << 20
	DefaultCols     = 80
	DefaultRows     = 24
	MaxTerminalSize = 1000
	DefaultTerm     = "xterm-256color"
	// KeepProcesses is how long an ended process and its output are kept.
	KeepProcesses = 10 * time.Minute
	// MaxEndedProcesses bounds the ended ones that are kept.
	MaxEndedProcesses = 1000
)
