package guestproto

// The methods for processes. Those from MethodProcessSpawn on need CapProcesses.
const (
	MethodProcessStart   = "process.start"   // ProcessStart; Data = stdin; Event ProcessStarted; Stdout/Stderr; Result ProcessExit
	MethodProcessAttach  = "process.attach"  // ProcessAttach; then as start
	MethodProcessKill    = "process.kill"    // ProcessKill → {}
	MethodProcessList    = "process.list"    // {} → []ProcessInfo, as many as fit a frame
	MethodProcessSpawn   = "process.spawn"   // ProcessStart → ProcessInfo; nobody follows
	MethodProcessQuery   = "process.query"   // ProcessQuery; Data guest → host: one JSON ProcessInfo a line; Result {}
	MethodProcessInspect = "process.inspect" // ProcessRef → ProcessInfo
	MethodProcessWait    = "process.wait"    // ProcessRef → ProcessInfo, once it has ended
	MethodProcessInput   = "process.input"   // ProcessInput; Data = stdin, End; Result ProcessWritten
	MethodProcessResize  = "process.resize"  // ProcessResize → {}
	MethodProcessWatch   = "process.watch"   // {}; Data guest → host: one JSON ProcessNotice a line; ends with the session
)

// CapProcesses is the capability of an agent that knows processes beyond a command and its
// caller: all methods here, terminals, and the fields that came with them.
const CapProcesses = "processes"

// ProcessStart starts a command. Deadlines belong to the host, which sends
// MethodProcessKill when one passes.
type ProcessStart struct {
	ID      string            `json:"id"`              // chosen by the host, unique in the sandbox
	Shell   string            `json:"shell,omitempty"` // run by /bin/bash -c, or /bin/sh where there is none …
	Args    []string          `json:"args,omitempty"`  // … or an argument list; with a terminal neither: the user's login shell
	Env     map[string]string `json:"env,omitempty"`
	WorkDir string            `json:"work_dir,omitempty"`
	User    string            `json:"user,omitempty"`
	// Stdin: whether there will be input. Without it stdin is /dev/null.
	Stdin bool      `json:"stdin,omitempty"`
	Tag   string    `json:"tag,omitempty"`
	PTY   *Terminal `json:"pty,omitempty"`
	// LogBytes is how much output the log keeps; 0: 8 MiB.
	LogBytes int64 `json:"log_bytes,omitempty"`
	// StartedAt and DeadlineAt are the host's, in Unix microseconds: the agent says them
	// again in ProcessInfo, to the next host too, and does nothing else with them.
	StartedAt  int64 `json:"started_at,omitempty"`
	DeadlineAt int64 `json:"deadline_at,omitempty"`
}

// Terminal is a terminal's size and type.
type Terminal struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
	Term string `json:"term,omitempty"`
}

// ProcessAttach re-joins a process's output.
type ProcessAttach struct {
	ID string `json:"id"`
	// From is a position in the log; older than what is kept: the result says how much was
	// lost; the highest number stands for the log's end.
	From uint64 `json:"from"`
	// NoFollow: send what the log holds now and no more.
	NoFollow bool `json:"no_follow,omitempty"`
	// Hold makes this reader the one that holds the process back.
	Hold bool `json:"hold,omitempty"`
}

// ProcessKill signals a process.
type ProcessKill struct {
	ID     string `json:"id"`
	Signal int    `json:"signal"`
	Tree   bool   `json:"tree"`             // every process that the command started, however it hides
	Reason string `json:"reason,omitempty"` // "deadline" is reported back in ProcessExit
}

// ProcessRef names a process by exactly one of its names. A PID or a tag is looked for
// among those that run, and then among those that ended.
type ProcessRef struct {
	ID  string `json:"id,omitempty"`
	PID int    `json:"pid,omitempty"`
	Tag string `json:"tag,omitempty"`
}

// ProcessQuery selects processes. Zero fields select all.
type ProcessQuery struct {
	Tag     string `json:"tag,omitempty"`
	Running bool   `json:"running,omitempty"` // only those that run
	Ended   bool   `json:"ended,omitempty"`   // only those that ended
}

// ProcessInput writes to a process's stdin.
type ProcessInput struct {
	ID    string `json:"id"`
	Close bool   `json:"close,omitempty"` // after End; a terminal gets its end-of-file character
}

// ProcessWritten says how many bytes the process's pipe or terminal took.
type ProcessWritten struct {
	Bytes int64 `json:"bytes"`
}

// ProcessResize changes a terminal's size.
type ProcessResize struct {
	ID   string `json:"id"`
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

// ProcessStarted is the first event of a process.
type ProcessStarted struct {
	ID  string `json:"id"`
	PID int    `json:"pid"` // as programs in the sandbox see it; 0 when nothing could be executed
	// From is the position at which this reader's output begins.
	From uint64 `json:"from,omitempty"`
	// Info is set by an agent with CapProcesses.
	Info *ProcessInfo `json:"info,omitempty"`
}

// ProcessExit is the result of a process.
type ProcessExit struct {
	ExitCode int    `json:"exit_code"` // 128+n for a signal
	Signal   int    `json:"signal,omitempty"`
	Reason   string `json:"reason,omitempty"` // "oom", "deadline", "" otherwise
	Position uint64 `json:"position"`         // the log's end
	Lost     uint64 `json:"lost,omitempty"`   // bytes that this reader asked for and the log no longer held
	// Running: it has not ended; this reader asked for no more than the log held.
	Running bool  `json:"running,omitempty"`
	EndedAt int64 `json:"ended_at,omitempty"` // Unix microseconds
}

// ProcessInfo describes a process.
type ProcessInfo struct {
	ID         string       `json:"id"`
	PID        int          `json:"pid"`
	Tag        string       `json:"tag,omitempty"`
	Command    string       `json:"command"`        // shortened
	Args       []string     `json:"args,omitempty"` // empty for a shell command, and when they are too long to be kept
	WorkDir    string       `json:"work_dir,omitempty"`
	User       string       `json:"user"`
	PTY        bool         `json:"pty,omitempty"`
	Stdin      bool         `json:"stdin,omitempty"` // it takes input
	StartedAt  int64        `json:"started_at"`      // Unix microseconds
	DeadlineAt int64        `json:"deadline_at,omitempty"`
	LogStart   uint64       `json:"log_start,omitempty"`
	LogEnd     uint64       `json:"log_end,omitempty"`
	Exit       *ProcessExit `json:"exit,omitempty"`
}

// ProcessNotice is a line of MethodProcessWatch: what started or ended. First come
// those that run.
type ProcessNotice struct {
	Process ProcessInfo `json:"process"`
	// Missed counts the notices before this one that the agent had no room for.
	Missed int `json:"missed,omitempty"`
}
