package guest

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

// Config says what the agent takes for its own. The zero value is an ordinary
// process on a machine that it must leave alone.
type Config struct {
	In, Out *os.File // the link
	Log     *slog.Logger
	// Namespaces puts commands into a PID and a mount namespace of their own.
	Namespaces bool
	// CgroupRoot is where control groups (version 1) are mounted, one directory a
	// controller; empty: processes are tracked through /proc, which a command that
	// tries can escape.
	CgroupRoot string
	// OwnsMachine: the agent is PID 1 of a sandbox and may arrange it: /tmp, /etc/hosts,
	// the host's name, resource limits.
	OwnsMachine bool
}

// agent is the state of the program.
type agent struct {
	cfg    Config
	log    *slog.Logger
	bootID string
	link   *link
	ns     *namespaces
	groups *cgroups
	procs  *processTable
	guard  *guard
	users  accounts
	// replacing is held while a file takes another one's place, so that a condition on
	// the old one still holds when it does.
	replacing sync.Mutex

	mu       sync.Mutex
	identity guestproto.Identity // guarded by mu
}

// Run serves the link until its input ends, which for PID 1 of a sandbox is never.
func Run(cfg Config) error {
	debug.SetGCPercent(50) // little memory beats little collecting here
	// Nobody who is not root in the agent's own namespace reads its memory or its files.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot hide the agent from commands: %w", err)
	}
	var boot [16]byte
	rand.Read(boot[:]) // never fails since Go 1.24
	a := &agent{cfg: cfg, log: cfg.Log, bootID: hex.EncodeToString(boot[:])}
	if cfg.OwnsMachine {
		if err := prepareMachine(a.log); err != nil {
			return err
		}
	}
	var err error
	if a.groups, err = openCgroups(cfg.CgroupRoot); err != nil {
		return err
	}
	a.guard = newGuard(a)
	a.procs = newProcessTable(a)
	if a.ns, err = newNamespaces(a); err != nil {
		return err
	}
	go a.procs.reap()
	a.link = newLink(a, cfg.In, cfg.Out)
	return a.link.run()
}

// method is the handler of a call. It returns the result's value.
type method func(a *agent, ch *channel, params json.RawMessage) (any, error)

var methods = map[string]method{
	guestproto.MethodIdentity:       call(setIdentity),
	guestproto.MethodStats:          call(stats),
	guestproto.MethodProcessStart:   call(startProcess),
	guestproto.MethodProcessAttach:  call(attachProcess),
	guestproto.MethodProcessKill:    call(killProcess),
	guestproto.MethodProcessList:    call(listProcesses),
	guestproto.MethodProcessSpawn:   call(spawnProcess),
	guestproto.MethodProcessQuery:   call(queryProcesses),
	guestproto.MethodProcessInspect: call(inspectProcess),
	guestproto.MethodProcessWait:    call(waitProcess),
	guestproto.MethodProcessInput:   call(inputProcess),
	guestproto.MethodProcessResize:  call(resizeProcess),
	guestproto.MethodProcessWatch:   call(watchProcesses),
	guestproto.MethodFileRead:       call(readFile),
	guestproto.MethodFileWrite:      call(writeFile),
	guestproto.MethodFileStat:       call(statFile),
	guestproto.MethodFileList:       call(listFiles),
	guestproto.MethodFileMkdir:      call(makeDir),
	guestproto.MethodFileRename:     call(renameFile),
	guestproto.MethodFileRemove:     call(removeFile),
	guestproto.MethodPortDial:       call(dialPort),
	guestproto.MethodPortList:       call(listPorts),
	guestproto.MethodConnections:    call(listConnections),
	guestproto.MethodFileMode:       call(changeMode),
	guestproto.MethodFileCopy:       call(copyFile),
	guestproto.MethodFileSearch:     call(searchFiles),
	guestproto.MethodFileChecksum:   call(checksumFile),
	guestproto.MethodFileMetadata:   call(changeMetadata),
	guestproto.MethodFileWatch:      call(watchFiles),
	guestproto.MethodArchiveRead:    call(readArchive),
	guestproto.MethodArchiveWrite:   call(writeArchive),
}

// call gives a handler its decoded parameters.
func call[P any](f func(*agent, *channel, P) (any, error)) method {
	return func(a *agent, ch *channel, raw json.RawMessage) (any, error) {
		var p P
		if err := json.Unmarshal(raw, &p); err != nil {
			return nil, fail(codeInvalid, "", "cannot decode the call: %v", err)
		}
		return f(a, ch, p)
	}
}

// serve answers one call.
func (a *agent) serve(ch *channel, open guestproto.Open) {
	defer ch.finish()
	var value any
	var err error
	if m := methods[open.Method]; m != nil {
		value, err = m(a, ch, open.Params)
	} else {
		err = fail(codeNotYetSupported, "", "the guest agent has no method %q", open.Method)
	}
	if errors.Is(err, errGone) {
		return
	}
	ch.result(value, err)
}

func (a *agent) currentIdentity() guestproto.Identity {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.identity
}
