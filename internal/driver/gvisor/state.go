package gvisor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"ringfence.dev/ringfence/internal/driver"
)

// What is in a sandbox's directory, besides the named pipes, the control socket
// and config.json.
const (
	stateFile = "state.json"
	diskFile  = "disk"       // the writable layer
	sentryLog = "sentry.log" // what gVisor has to say when it fails
	agentLog  = "agent.log"  // the last that the agent wrote to its stderr
	pauseFile = "paused"     // how far a pause or resume has come
	emptyDir  = "empty"      // where the sentry looks for a root it does not use
)

// state is what a later daemon has to know about a sandbox.
type state struct {
	Spec      driver.Spec
	Agent     string // path of the image of its agent
	Engine    engine
	Pid       int
	StartTime uint64 // of the process, in clock ticks since boot
	BootID    string // of the host's kernel
	CreatedAt time.Time
	Running   bool // the guest was started; before that there is nothing to keep
}

// save replaces the state file in one step.
func (s *state) save(dir string) error {
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, stateFile)
	if err := os.WriteFile(path+".new", raw, 0o600); err != nil {
		return fmt.Errorf("cannot record the sandbox: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("cannot record the sandbox: %w", err)
	}
	return nil
}

func loadState(dir string) (*state, error) {
	raw, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, err
	}
	s := new(state)
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("cannot read the record of a sandbox: %w", err)
	}
	return s, nil
}

// alive reports whether the recorded process is still that process.
func (s *state) alive() bool {
	boot, err := bootID()
	if err != nil || boot != s.BootID || s.Pid <= 0 {
		return false
	}
	started, err := startTime(s.Pid)
	return err == nil && started == s.StartTime
}
