package guest

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// CgroupMount is where a sandbox's control groups are mounted for the agent.
const CgroupMount = "/sys/fs/cgroup"

// The agent's groups in the two hierarchies that it uses.
const (
	groupsDir  = "rf"    // pids: all commands together, the limit. memory: one directory a command, for finding its processes
	startDir   = "rf-in" // pids: a command that was let in beyond the limit, for a moment
	startSlack = 16      // how many processes may be in startDir
)

// cgroups tracks commands in control groups of version 1. One hierarchy (pids) holds
// all commands in one group, because the sentry's limits are not added up over
// nested groups; another one (memory) holds a group for each command. A process
// cannot leave either: it sees no control groups and may not mount any.
//
// All access goes through open directories, since the threads that use them are in
// the commands' mount namespace, where no control groups are.
type cgroups struct {
	enabled             bool
	pids, start, memory int // directories
	inPIDs              bool
}

func openCgroups(root string) (*cgroups, error) {
	g := &cgroups{}
	if root == "" {
		return g, nil
	}
	for _, d := range []struct {
		path string
		fd   *int
	}{{"/pids/" + groupsDir, &g.pids}, {"/pids/" + startDir, &g.start}, {"/memory/" + groupsDir, &g.memory}} {
		if err := os.Mkdir(root+d.path, 0o700); err != nil && !os.IsExist(err) {
			return nil, fmt.Errorf("cannot use control groups: %w", err)
		}
		var err error
		if *d.fd, err = unix.Open(root+d.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return nil, fmt.Errorf("cannot use control groups: %w", err)
		}
	}
	g.enabled = true
	return g, writeControl(g.start, "pids.max", strconv.Itoa(startSlack))
}

// setLimit bounds the processes and threads of all commands together.
func (g *cgroups) setLimit(n int) error {
	if !g.enabled {
		return nil
	}
	return writeControl(g.pids, "pids.max", strconv.Itoa(n))
}

// enter makes the calling thread, which must be the spawner, a member of the group of
// a command, so that what it starts is one from its first instruction on. With
// squeeze it goes to the group for those who get in although the limit is reached.
func (g *cgroups) enter(id string, squeeze bool) error {
	if !g.enabled {
		return nil
	}
	if squeeze || !g.inPIDs {
		dir := g.pids
		if squeeze {
			dir = g.start
		}
		if err := writeControl(dir, "tasks", "0"); err != nil {
			return fmt.Errorf("cannot enter a control group: %w", err)
		}
		g.inPIDs = !squeeze
	}
	if err := unix.Mkdirat(g.memory, id, 0o700); err != nil && err != unix.EEXIST {
		return fmt.Errorf("cannot make a control group: %w", err)
	}
	if err := writeControl(g.memory, id+"/tasks", "0"); err != nil {
		return fmt.Errorf("cannot enter a control group: %w", err)
	}
	return nil
}

// leave takes the spawner out of a command's group, which can then be removed.
func (g *cgroups) leave() error {
	if !g.enabled {
		return nil
	}
	return writeControl(g.memory, "tasks", "0")
}

// settle moves what is in the start group to its place. Nothing can be forked there
// meanwhile, so one pass gets all.
func (g *cgroups) settle() error {
	if err := writeControl(g.start, "pids.max", "0"); err != nil {
		return err
	}
	for _, pid := range g.read(g.start, "cgroup.procs") {
		_ = writeControl(g.pids, "cgroup.procs", strconv.Itoa(pid)) // it may have ended
	}
	return writeControl(g.start, "pids.max", strconv.Itoa(startSlack))
}

// members lists the processes of a command.
func (g *cgroups) members(id string) []int { return g.read(g.memory, id+"/cgroup.procs") }

// threads returns how many processes and threads all commands have.
func (g *cgroups) threads() int {
	if n := g.readNumber(g.pids, "pids.current"); n > 0 {
		return n - 1 // the spawner
	}
	return 0
}

// remove removes a command's group, and reports whether it is gone.
func (g *cgroups) remove(id string) bool {
	if !g.enabled {
		return true
	}
	err := unix.Unlinkat(g.memory, id, unix.AT_REMOVEDIR)
	return err == nil || err == unix.ENOENT
}

// read reads a list of process numbers without the agent's own, which stands there
// for its spawner.
func (g *cgroups) read(dir int, file string) []int {
	var pids []int
	for _, field := range bytes.Fields(readControl(dir, file)) {
		if pid, err := strconv.Atoi(string(field)); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (g *cgroups) readNumber(dir int, file string) int {
	n, err := strconv.Atoi(string(bytes.TrimSpace(readControl(dir, file))))
	if err != nil {
		return -1
	}
	return n
}

func readControl(dir int, file string) []byte {
	fd, err := unix.Openat(dir, file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	var all []byte
	buf := make([]byte, 4<<10)
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return all
		}
		all = append(all, buf[:n]...)
	}
}

func writeControl(dir int, file, value string) error {
	fd, err := unix.Openat(dir, file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: file, Err: err}
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return &os.PathError{Op: "write", Path: file, Err: err}
	}
	return nil
}
