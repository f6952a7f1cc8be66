package ringfence

// State is where a sandbox stands in its life.
//
//	starting ──► running ⇄ (pausing, paused, resuming: later)
//	    │           │
//	    └─► failed ◄┤
//	                └──► deleted
type State string

// The states. The zero value is invalid.
const (
	StateStarting State = "starting"
	StateRunning  State = "running"
	StatePausing  State = "pausing"
	StatePaused   State = "paused"
	StateResuming State = "resuming"
	StateFailed   State = "failed"
	StateDeleted  State = "deleted"
)

// transitions is the whole table: a move that is not here is a bug.
var transitions = map[State][]State{
	StateStarting: {StateRunning, StateFailed, StateDeleted},
	StateRunning:  {StatePausing, StateFailed, StateDeleted},
	StatePausing:  {StatePaused, StateRunning, StateFailed, StateDeleted},
	StatePaused:   {StateResuming, StateFailed, StateDeleted},
	StateResuming: {StateRunning, StatePaused, StateFailed, StateDeleted},
	StateFailed:   {StateDeleted},
}

// CanMove reports whether a sandbox may go from one state to the other.
func CanMove(from, to State) bool {
	for _, s := range transitions[from] {
		if s == to {
			return true
		}
	}
	return false
}

// Ended reports whether s is a state that a sandbox never leaves by itself.
func (s State) Ended() bool { return s == StateFailed || s == StateDeleted }

// Valid reports whether s is one of the states.
func (s State) Valid() bool {
	_, ok := transitions[s]
	return ok || s == StateDeleted
}

// Reason says why a sandbox ended. The list is closed.
type Reason string

// The reasons.
const (
	ReasonNone          Reason = ""
	ReasonKilled        Reason = "killed"         // by a caller
	ReasonExpired       Reason = "expired"        // its life limit passed
	ReasonOOM           Reason = "oom"            // it hit the hard memory limit on the host
	ReasonCrashed       Reason = "crashed"        // its process died and nobody knows why
	ReasonStartFailed   Reason = "start_failed"   // it never came up
	ReasonHostRestarted Reason = "host_restarted" // the host went down under it
	ReasonAgentLost     Reason = "agent_lost"     // the guest agent stopped answering for good
)
