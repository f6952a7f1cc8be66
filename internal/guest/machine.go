package guest

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

const (
	// defaultMaxProcs bounds the processes and threads of all commands together where
	// the identity does not say.
	defaultMaxProcs = 1024
	// procSlack is how far the second line, the limit per user, is behind the first.
	procSlack = 64
)

// prepareMachine arranges the sandbox before anything else runs in it.
func prepareMachine(log *slog.Logger) error {
	// The sentry mounts memory on an empty /tmp. Files are to be on the disk, where
	// their size counts as disk.
	var fs unix.Statfs_t
	if unix.Statfs("/tmp", &fs) == nil && fs.Type == unix.TMPFS_MAGIC {
		if err := unix.Unmount("/tmp", unix.MNT_DETACH); err != nil {
			log.Warn("Cannot take the memory file system off /tmp", "error", err)
		}
	}
	if err := os.Mkdir("/tmp", 0o1777); err != nil && !os.IsExist(err) {
		log.Warn("Cannot make /tmp", "error", err)
	}
	if err := unix.Chmod("/tmp", 0o1777); err != nil {
		log.Warn("Cannot open /tmp for everyone", "error", err)
	}
	return nil
}

// setIdentity tells the agent who its sandbox is.
func setIdentity(a *agent, _ *channel, id guestproto.Identity) (any, error) {
	a.mu.Lock()
	a.identity = id
	a.mu.Unlock()
	if !a.cfg.OwnsMachine {
		return struct{}{}, nil
	}
	if id.Hostname != "" {
		if err := unix.Sethostname([]byte(id.Hostname)); err != nil {
			return nil, fail(codeInternal, "", "cannot set the host's name: %v", err)
		}
		if err := addHost(id.Hostname); err != nil {
			a.log.Warn("Cannot enter the host's name in /etc/hosts", "error", err)
		}
	}
	if err := newGeneration(); err != nil {
		a.log.Warn("Cannot write the generation file", "error", err)
	}
	if id.DNS != nil {
		if err := setDNS(*id.DNS); err != nil {
			a.log.Warn("Cannot set where names are looked up", "error", err)
		}
	}
	// What the logs gave up is the sandbox's again before the collector would see to it.
	debug.SetMemoryLimit(int64(2*logBudget(id.MemoryBytes)) + agentMemory)
	limit := a.processLimit()
	if err := a.groups.setLimit(limit); err != nil {
		return nil, fail(codeInternal, "", "cannot set the limit on processes: %v", err)
	}
	// The second line counts per user, and the agent's own threads are root's.
	per := unix.Rlimit{Cur: uint64(limit + procSlack), Max: uint64(limit + procSlack)}
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &per); err != nil {
		return nil, fail(codeInternal, "", "cannot set the limit on processes: %v", err)
	}
	return struct{}{}, nil
}

// agentMemory is what the agent may need beside twice the logs, in bytes.
const agentMemory = 32 << 20

func (a *agent) processLimit() int {
	if n := a.currentIdentity().MaxProcs; n > 0 {
		return n
	}
	return defaultMaxProcs
}

// setDNS writes /etc/resolv.conf. Images often have a link to a place there that
// does not exist here.
func setDNS(d guestproto.DNS) error {
	const path = "/etc/resolv.conf"
	var b bytes.Buffer
	for _, s := range d.Servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(d.Search) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(d.Search, " "))
	}
	b.WriteString("options timeout:5 attempts:2\n")
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, b.Bytes()) {
		return nil
	}
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// addHost lets programs find their own name.
func addHost(name string) error {
	const path = "/etc/hosts"
	b, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, line := range strings.Split(string(b), "\n") {
		line, _, _ = strings.Cut(line, "#")
		if f := strings.Fields(line); len(f) > 1 {
			for _, host := range f[1:] {
				if host == name {
					return nil
				}
			}
		}
	}
	if len(b) == 0 {
		b = []byte("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	} else if !bytes.HasSuffix(b, []byte("\n")) {
		b = append(b, '\n')
	}
	return os.WriteFile(path, append(b, "127.0.1.1\t"+name+"\n"...), 0o644)
}

func stats(a *agent, _ *channel, _ struct{}) (any, error) {
	total, free := a.memory()
	s := guestproto.Stats{Processes: a.groups.threads(), MemTotalBytes: total, MemFreeBytes: free}
	if !a.groups.enabled {
		for _, p := range a.procs.all() {
			s.Processes += len(markedProcesses(p))
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs("/", &fs); err != nil {
		return nil, fail(codeInternal, "", "cannot look at the disk: %v", err)
	}
	s.DiskTotalBytes = int64(fs.Blocks) * fs.Bsize
	s.DiskFreeBytes = int64(fs.Bavail) * fs.Bsize
	return s, nil
}
