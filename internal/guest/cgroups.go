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

const (
	// commandsDir holds a group for each command. The limit is on the whole.
	commandsDir = "rf"
	// extraDir holds those commands that were let in beyond the limit.
	extraDir = "rf-extra"
	// extraProcs is how many processes and threads they may have together.
	extraProcs = 16
)

// cgroups tracks commands in control groups of version 2. A process is a member from
// its first instruction on, cannot leave, since it sees no control groups and may not
// mount any, and is killed with the group whatever it does meanwhile.
//
// (The sentry's version 1 will not do: it charges a fork to an arbitrary one of a
// task's groups, so that a limit on processes holds for one fork in seven.)
//
// All access goes through open directories: the threads that use them are in the
// commands' mount namespace, where no control groups are.
type cgroups struct {
	enabled         bool
	commands, extra int
}

func openCgroups(root string) (*cgroups, error) {
	g := &cgroups{}
	if root == "" {
		return g, nil
	}
	for _, d := range []struct {
		name string
		fd   *int
	}{{commandsDir, &g.commands}, {extraDir, &g.extra}} {
		path := root + "/" + d.name
		if err := os.Mkdir(path, 0o700); err != nil && !os.IsExist(err) {
			return nil, fmt.Errorf("cannot use control groups: %w", err)
		}
		var err error
		if *d.fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return nil, fmt.Errorf("cannot use control groups: %w", err)
		}
	}
	g.enabled = true
	if err := writeControl(g.extra, "pids.max", strconv.Itoa(extraProcs)); err != nil {
		return nil, fmt.Errorf("cannot use control groups of version 2: %w", err)
	}
	return g, nil
}

// setLimit bounds the processes and threads of all commands together.
func (g *cgroups) setLimit(n int) error {
	if !g.enabled {
		return nil
	}
	return writeControl(g.commands, "pids.max", strconv.Itoa(n))
}

// open makes a group for a command and returns it open; with beyond it is one for
// which the limit does not count.
func (g *cgroups) open(id string, beyond bool) (int, error) {
	dir := g.commands
	if beyond {
		dir = g.extra
	}
	if err := unix.Mkdirat(dir, id, 0o700); err != nil && err != unix.EEXIST {
		return -1, fmt.Errorf("cannot make a control group: %w", err)
	}
	fd, err := unix.Openat(dir, id, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("cannot open a control group: %w", err)
	}
	return fd, nil
}

// members lists the processes of a command.
func (g *cgroups) members(id string) []int {
	var pids []int
	for _, dir := range []int{g.commands, g.extra} {
		for _, field := range bytes.Fields(readControl(dir, id+"/cgroup.procs")) {
			if pid, err := strconv.Atoi(string(field)); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// kill sends SIGKILL to all processes of a command, those being forked included.
func (g *cgroups) kill(id string) {
	for _, dir := range []int{g.commands, g.extra} {
		_ = writeControl(dir, id+"/cgroup.kill", "1") // a command has one of the two
	}
}

// threads returns how many processes and threads all commands have.
func (g *cgroups) threads() int {
	total := 0
	for _, dir := range []int{g.commands, g.extra} {
		n, err := strconv.Atoi(string(bytes.TrimSpace(readControl(dir, "pids.current"))))
		if err == nil {
			total += n
		}
	}
	return total
}

// remove removes a command's group, and reports whether it is gone.
func (g *cgroups) remove(id string) bool {
	if !g.enabled {
		return true
	}
	gone := true
	for _, dir := range []int{g.commands, g.extra} {
		err := unix.Unlinkat(dir, id, unix.AT_REMOVEDIR)
		gone = gone && (err == nil || err == unix.ENOENT)
	}
	return gone
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
