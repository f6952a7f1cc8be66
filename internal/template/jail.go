package template

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// jailName is argv[0] of the process that sets up what a build step sees and then
// becomes the step.
const jailName = "ringfence-build-step"

// clientDir is where a step finds what the host lends it to reach package sources.
const clientDir = "/run/ringfence-build"

// jail is what one command of a build gets to see.
type jail struct {
	// Root becomes / of the command; empty: it sees the host, as mmdebstrap needs to.
	Root string
	// Tmp is mounted at /tmp of Root, Clients (read-only) at clientDir.
	Tmp     string
	Clients string
	// Resolve lends the host's resolver configuration.
	Resolve bool

	UID, GID uint32
	Groups   []uint32
	Dir      string
	Env      []string
	Args     []string // Args[0] is looked up in the PATH of Env
}

// What root in a step never needs, and what could touch the host from there.
var forbidden = []uintptr{
	unix.CAP_SYS_MODULE, unix.CAP_SYS_RAWIO, unix.CAP_SYS_BOOT, unix.CAP_SYS_TIME, unix.CAP_SYS_PTRACE,
	unix.CAP_SYS_PACCT, unix.CAP_SYSLOG, unix.CAP_AUDIT_CONTROL, unix.CAP_MAC_ADMIN, unix.CAP_MAC_OVERRIDE,
	unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_WAKE_ALARM, unix.CAP_SYS_ADMIN, unix.CAP_MKNOD,
}

// init makes every program that can build able to be its own jail, tests included:
// it starts itself under jailName and never gets to its main.
func init() {
	if len(os.Args) == 1 && os.Args[0] == jailName {
		err := enterJail()
		fmt.Fprintf(os.Stderr, "cannot set up the build step: %v\n", err)
		os.Exit(125)
	}
}

// command returns a process that enters j in new namespaces. They and all that
// runs in them end with the process, and that with the thread which started it:
// the caller keeps its goroutine on its thread until the process has ended.
func (j jail) command() (*exec.Cmd, error) {
	spec, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	// A spec is far smaller than a pipe's buffer, so this does not block.
	if err := unix.SetNonblock(int(w.Fd()), true); err != nil {
		return nil, err
	}
	_, err = w.Write(spec)
	if err := errors.Join(err, w.Close()); err != nil {
		r.Close()
		return nil, fmt.Errorf("cannot hand over the build step: %w", err)
	}
	return &exec.Cmd{
		Path:       "/proc/self/exe",
		Args:       []string{jailName},
		Env:        []string{},
		Dir:        "/",
		ExtraFiles: []*os.File{r},
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
			Pdeathsig:  syscall.SIGKILL,
			Setsid:     true,
		},
	}, nil
}

// enterJail runs as the first process of the new namespaces. It returns only to
// report an error.
func enterJail() error {
	runtime.LockOSThread()
	var j jail
	if err := json.NewDecoder(os.NewFile(3, "spec")).Decode(&j); err != nil {
		return err
	}
	// Nothing that this process was given goes on to the step, what the caller of the build
	// had open included: mmdebstrap writes numbers of its descriptors into shell scripts,
	// and dash knows those of one digit only.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close what was inherited: %w", err)
	}
	unix.Umask(0o022)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Sethostname([]byte("build")); err != nil {
		return err
	}
	if j.Root == "" {
		if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mount /proc: %w", err)
		}
	} else {
		if err := j.mounts(); err != nil {
			return err
		}
		if err := pivot(j.Root); err != nil {
			return err
		}
		for _, c := range forbidden {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("drop capability %d: %w", c, err)
			}
		}
	}
	if err := unix.Chdir(j.Dir); err != nil {
		return fmt.Errorf("enter %s: %w", j.Dir, err)
	}
	path, err := lookPath(j.Args[0], j.Env)
	if err != nil {
		return err
	}
	groups := make([]int, len(j.Groups))
	for i, g := range j.Groups {
		groups[i] = int(g)
	}
	if err := errors.Join(syscall.Setgroups(groups), syscall.Setresgid(int(j.GID), int(j.GID), int(j.GID)),
		syscall.Setresuid(int(j.UID), int(j.UID), int(j.UID))); err != nil {
		return fmt.Errorf("become user %d: %w", j.UID, err)
	}
	return fmt.Errorf("start %s: %w", path, unix.Exec(path, j.Args, j.Env))
}

// mounts puts into the root what a program expects there.
func (j jail) mounts() error {
	at := func(p string) string { return filepath.Join(j.Root, p) }
	const quiet = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	var errs []error
	mount := func(source, target, kind string, flags uintptr, data string) {
		if err := os.MkdirAll(at(target), 0o755); err != nil {
			errs = append(errs, err)
			return
		}
		if err := unix.Mount(source, at(target), kind, flags, data); err != nil {
			errs = append(errs, fmt.Errorf("mount %s: %w", target, err))
		}
	}
	// lend mounts one file of the host read-only over a file in a fresh tmpfs.
	lend := func(source, target string, flags uintptr) {
		if f, err := os.OpenFile(at(target), os.O_CREATE, 0o644); err != nil {
			errs = append(errs, err)
			return
		} else {
			f.Close()
		}
		err := unix.Mount(source, at(target), "", unix.MS_BIND, "")
		if err == nil && flags != 0 {
			err = unix.Mount("", at(target), "", unix.MS_BIND|unix.MS_REMOUNT|flags, "")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("mount %s: %w", target, err))
		}
	}
	mount(j.Root, "/", "", unix.MS_BIND, "")
	mount("proc", "/proc", "proc", quiet, "")
	mount("dev", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=64k")
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		lend("/dev/"+name, "/dev/"+name, 0)
	}
	mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
	mount("shm", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	mount("run", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755")
	for link, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx"} {
		errs = append(errs, os.Symlink(target, at("/dev/"+link)))
	}
	errs = append(errs, os.Mkdir(at("/run/lock"), 0o1777))
	if j.Tmp != "" {
		mount(j.Tmp, "/tmp", "", unix.MS_BIND, "")
	}
	if j.Clients != "" {
		mount(j.Clients, clientDir, "", unix.MS_BIND, "")
		errs = append(errs, unix.Mount("", at(clientDir), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|quiet, ""))
	}
	if j.Resolve {
		for _, name := range []string{"/etc/resolv.conf", "/etc/hosts"} {
			if _, err := os.Stat(name); err != nil {
				continue
			}
			if info, err := os.Lstat(at(name)); err != nil || !info.Mode().IsRegular() {
				continue // finish writes both, so they are there from the first step on
			}
			lend(name, name, unix.MS_RDONLY)
		}
	}
	return errors.Join(errs...)
}

// pivot makes root the only file system that is left.
func pivot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return err
	}
	// With one directory as new root and place of the old one, the old one lies on
	// top and is taken away next.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the host's root: %w", err)
	}
	return unix.Chdir("/")
}

func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, e := range env {
		if list, ok := strings.CutPrefix(e, "PATH="); ok {
			for dir := range strings.SplitSeq(list, ":") {
				path := filepath.Join(dir, name)
				if unix.Access(path, unix.X_OK) == nil {
					return path, nil
				}
			}
		}
	}
	return "", fmt.Errorf("there is no program %s", name)
}
