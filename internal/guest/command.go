package guest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

// defaultPath is PATH where nobody set one.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// markVariable finds a command's processes where there are no control groups.
const markVariable = "RINGFENCE_COMMAND"

// command is what is executed.
type command struct {
	program string
	args    []string
	env     []string
	dir     string
	user    account
	shell   *command // what to execute instead if the program itself cannot be
	// status and message stand in for a program that cannot be executed.
	status  int
	message string
}

// start starts a command, and makes it known before its end can be.
func (a *agent) start(ch *channel, ps guestproto.ProcessStart) (*process, error) {
	c, err := a.prepare(ps)
	if err != nil {
		return nil, err
	}
	p := &process{
		id: ps.ID, tag: ps.Tag, user: c.user.name, command: ps.Shell, args: keptArgs(ps.Args), dir: c.dir,
		startedAt: ps.StartedAt, deadlineAt: ps.DeadlineAt, logLimit: logLimit, ended: make(chan struct{}),
		roomy: a.procs.running() < roomyProcesses,
	}
	if p.startedAt == 0 {
		p.startedAt = time.Now().UnixMicro()
	}
	if p.command == "" {
		p.command = quoteArgs(ps.Args)
	}
	if p.command == "" {
		p.command = c.program // the login shell
	}
	p.command = shorten(p.command)
	if ps.LogBytes > 0 {
		p.logLimit = uint64(min(ps.LogBytes, maxLogLimit))
	}
	p.log = newOutlog(a.link.free, &a.procs.logs, p.logLimit)
	if ch != nil {
		p.log.holdFrom(ch, 0)
	}
	if c.message != "" {
		a.procs.add(p.id, p)
		p.log.append(guestproto.TypeStderr, []byte(c.message))
		go p.end(a.procs, guestproto.ProcessExit{ExitCode: c.status})
		return p, nil
	}
	var files []uintptr
	if ps.PTY != nil {
		files, err = p.openPTY(a, c.user, *ps.PTY)
	} else {
		files, err = p.openPipes(ps.Stdin)
	}
	if err != nil {
		return nil, fail(codeExhausted, "", "cannot make pipes for the command: %v", err)
	}
	defer func() {
		for i, fd := range files {
			if !slices.Contains(files[:i], fd) {
				unix.Close(int(fd))
			}
		}
	}()

	// The kernel says ENOMEM of a PID namespace whose first process is gone, as a command
	// may have brought about; a new one is made once the agent has heard of it.
	for deadline := time.Now().Add(awaitNamespaces); ; time.Sleep(awaitNamespaces / 50) {
		a.procs.startMu.Lock()
		err = a.ns.spawn(func() error { return a.forkExec(p, c, files) })
		if !errors.Is(err, syscall.ENOMEM) || time.Now().After(deadline) {
			break
		}
		a.procs.startMu.Unlock()
	}
	var errno syscall.Errno
	if c.shell != nil && errors.As(err, &errno) && errno != syscall.EAGAIN && errno != syscall.ENOMEM {
		// A script without its first line, say: the shell knows what to do, or to say.
		c = *c.shell
		err = a.ns.spawn(func() error { return a.forkExec(p, c, files) })
	}
	if err == nil {
		p.inner = innerPID(p.pid)
		a.procs.add(p.id, p)
	}
	a.procs.startMu.Unlock()
	if err != nil {
		p.closePipes()
		a.groups.remove(p.id)
		return a.notExecuted(p, c, err)
	}
	for _, s := range p.streams {
		go p.pump(s)
	}
	a.guard.watch()
	return p, nil
}

// awaitNamespaces is how long a command waits for namespaces that it can be started in.
const awaitNamespaces = time.Second

// forkExec runs on the spawner.
func (a *agent) forkExec(p *process, c command, files []uintptr) error {
	attr := &syscall.ProcAttr{Dir: c.dir, Env: c.env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: p.terminal != nil}}
	if os.Geteuid() == 0 {
		attr.Sys.Credential = &syscall.Credential{Uid: c.user.uid, Gid: c.user.gid, Groups: c.user.groups}
	}
	if !a.groups.enabled {
		var err error
		p.pid, err = syscall.ForkExec(c.program, c.args, attr)
		return err
	}
	attr.Sys.UseCgroupFD = true
	// The limit on processes may be reached by what others started. One command that is
	// needed to look into that is let in all the same.
	var err error
	for _, beyond := range []bool{false, true} {
		if attr.Sys.CgroupFD, err = a.groups.open(p.id, beyond); err != nil {
			return err
		}
		p.pid, err = syscall.ForkExec(c.program, c.args, attr)
		unix.Close(attr.Sys.CgroupFD)
		if !errors.Is(err, syscall.EAGAIN) {
			break
		}
	}
	return err
}

// notExecuted is a program that passed the checks and was refused by the kernel.
func (a *agent) notExecuted(p *process, c command, err error) (*process, error) {
	var errno syscall.Errno
	switch {
	case !errors.As(err, &errno):
		return nil, err
	case errno == syscall.EAGAIN || errno == syscall.ENOMEM:
		return nil, fail(codeExhausted, "", "cannot start the command: the sandbox's limit on processes or memory is reached")
	case errno == syscall.E2BIG || errno == syscall.ENAMETOOLONG:
		// gVisor says the latter of one argument beyond 128 KiB; the program's own path was found.
		return nil, fail(codeInvalid, "command", "the arguments and the environment are too long for the system")
	case errno == syscall.EINVAL:
		return nil, fail(codeInvalid, "command", "cannot start the command: %v", errno)
	}
	status := 126
	if errno == syscall.ENOENT {
		status = 127 // the interpreter of a script is missing
	}
	p.pid, p.streams, p.input = 0, nil, nil
	a.procs.add(p.id, p)
	p.log.append(guestproto.TypeStderr, fmt.Appendf(nil, "%s: cannot execute: %v\n", c.args[0], errno))
	go p.end(a.procs, guestproto.ProcessExit{ExitCode: status})
	return p, nil
}

// openPipes makes the process's pipes and returns the process's ends.
func (p *process) openPipes(stdin bool) (files []uintptr, err error) {
	defer func() {
		if err != nil {
			p.closePipes()
			for _, fd := range files {
				unix.Close(int(fd))
			}
			files = nil
		}
	}()
	if stdin {
		var pipe [2]int
		if err = unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
			return files, err
		}
		files = append(files, uintptr(pipe[0]))
		_ = unix.SetNonblock(pipe[1], true)
		p.input = newInput(os.NewFile(uintptr(pipe[1]), "stdin"), false, p.log.free)
	} else {
		null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return files, err
		}
		files = append(files, uintptr(null))
	}
	for _, typ := range []guestproto.Type{guestproto.TypeStdout, guestproto.TypeStderr} {
		var pipe [2]int
		if err = unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
			return files, err
		}
		files = append(files, uintptr(pipe[1]))
		if p.roomy {
			_, _ = unix.FcntlInt(uintptr(pipe[0]), unix.F_SETPIPE_SZ, pipeSize) // the default is only slower
		}
		_ = unix.SetNonblock(pipe[0], true)
		p.streams = append(p.streams, &stream{typ: typ, file: os.NewFile(uintptr(pipe[0]), "output"), drained: make(chan struct{})})
	}
	return files, nil
}

func (p *process) closePipes() {
	p.closeInput()
	for _, s := range p.streams {
		s.file.Close()
	}
}

// prepare decides what is executed, as whom, where, and with which environment.
func (a *agent) prepare(ps guestproto.ProcessStart) (command, error) {
	id := a.currentIdentity()
	name := ps.User
	if name == "" {
		name = id.User
	}
	user, err := a.users.lookup(name, "user")
	if err != nil {
		return command{}, err
	}
	c := command{user: user}
	for _, s := range append([]string{ps.Shell, ps.WorkDir}, ps.Args...) {
		if strings.IndexByte(s, 0) >= 0 {
			return command{}, fail(codeInvalid, "command", "a command cannot hold a NUL byte")
		}
	}
	if ps.WorkDir != "" && !path.IsAbs(ps.WorkDir) {
		return command{}, fail(codeInvalid, "cwd", "the working directory %q is not an absolute path", ps.WorkDir)
	}
	env := mergeEnv(map[string]string{
		"PATH": defaultPath, "HOME": user.home, "USER": user.name, "LOGNAME": user.name, "SHELL": user.shell,
	}, id.Env)
	if ps.PTY != nil {
		env["TERM"] = defaultTerm
		if ps.PTY.Term != "" {
			env["TERM"] = ps.PTY.Term
		}
	}
	env = mergeEnv(env, ps.Env)
	if !a.groups.enabled {
		env[markVariable] = ps.ID
	}
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.IndexByte(v, 0) >= 0 {
			return command{}, fail(codeInvalid, "env", "the environment variable %q has no valid name or value", k)
		}
		c.env = append(c.env, k+"="+v)
	}
	sort.Strings(c.env)
	err = a.ns.onFileThread(user, func() error { return c.resolve(ps, id.WorkDir, env) })
	return c, err
}

func mergeEnv(maps ...map[string]string) map[string]string {
	all := make(map[string]string)
	for _, m := range maps {
		for k, v := range m {
			all[k] = v
		}
	}
	return all
}

// resolve finds the working directory and the program with the user's own rights.
func (c *command) resolve(ps guestproto.ProcessStart, defaultDir string, env map[string]string) error {
	if ps.WorkDir != "" {
		if err := unix.Chdir(ps.WorkDir); err != nil {
			return fail(codeInvalid, "cwd", "cannot use the working directory %q: %v", ps.WorkDir, err)
		}
		c.dir = ps.WorkDir
	} else {
		for _, dir := range []string{defaultDir, c.user.home, "/"} {
			if path.IsAbs(dir) && unix.Chdir(dir) == nil {
				c.dir = dir
				break
			}
		}
	}
	defer unix.Chdir("/")
	if ps.Shell == "" && len(ps.Args) == 0 {
		c.program = c.user.shell
		if status := executable(c.program); status != 0 {
			c.program = "/bin/sh"
		}
		c.args = []string{"-" + path.Base(c.program)} // the dash makes it a login shell
		return nil
	}
	if ps.Shell != "" {
		c.program = "/bin/bash"
		if unix.Access(c.program, unix.X_OK) != nil {
			c.program = "/bin/sh"
		}
		c.args = []string{c.program, "-c", ps.Shell}
		if words, ok := simpleCommand(ps.Shell); ok && plainEnv(env) {
			if program, status := findProgram(words[0], env["PATH"]); status == 0 {
				shell := *c
				dir, err := unix.Getwd() // without symbolic links, as a shell has it
				if err != nil {
					return nil
				}
				c.shell, c.program, c.args = &shell, program, words
				c.env = append(slices.Clip(c.env), shellEnv(dir, program)...)
			}
		}
		return nil
	}
	c.args = ps.Args
	c.program, c.status = findProgram(ps.Args[0], env["PATH"])
	switch c.status {
	case 127:
		c.message = ps.Args[0] + ": command not found\n"
	case 126:
		c.message = ps.Args[0] + ": permission denied\n"
	}
	return nil
}

// findProgram looks for a program as a shell does. Status is 0, or what a shell exits
// with: 127 for a program that is not there, 126 for one that cannot be executed.
func findProgram(name, searchPath string) (program string, status int) {
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	status = 127
	if name == "" {
		return "", status
	}
	for _, dir := range strings.Split(searchPath, ":") {
		if dir == "" {
			dir = "."
		}
		candidate := dir + "/" + name
		switch executable(candidate) {
		case 0:
			return candidate, 0
		case 126:
			status = 126
		}
	}
	return "", status
}

func executable(file string) int {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		if err == unix.EACCES {
			return 126
		}
		return 127
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS) != nil {
		return 126
	}
	return 0
}

// innerPID returns the number of a process in its own namespace.
func innerPID(pid int) int {
	// With plain system calls: package os makes four times as many for a file of /proc.
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return pid
	}
	defer unix.Close(fd)
	b := make([]byte, 4<<10)
	n, err := unix.Read(fd, b)
	if err != nil {
		return pid
	}
	if _, rest, ok := bytes.Cut(b[:n], []byte("\nNSpid:")); ok {
		line, _, _ := bytes.Cut(rest, []byte("\n"))
		if f := bytes.Fields(line); len(f) > 0 {
			if n, err := strconv.Atoi(string(f[len(f)-1])); err == nil {
				return n
			}
		}
	}
	return pid
}
