package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/server"

	"ringfence.dev/ringfence/internal/driver"
)

// nobody is who the sentry runs as, in a user namespace that maps nobody else.
const nobody = 65534

// sentryFlags are gVisor's flags for every sandbox; docs/hardening.md says why each.
// A snapshot holds several of them, so a change makes older snapshots useless.
var sentryFlags = []string{
	"--platform=systrap",
	"--network=sandbox",
	"--directfs=false",
	"--host-uds=none",
	"--host-fifo=none",
	"--character-device-policy=emulated-only",
	"--net-raw=false",
	"--allow-packet-socket-write=false",
	"--allow-suid=true",
	"--allow-live-tcp-migration=false",
	"--in-sandbox-cgroup=v2", // the agent bounds processes with it
	// Version 1's limit on processes lets six forks in seven through; see package guest.
	"--in-sandbox-cgroup=v2",
	"--host-settings=ignore",
	"--watchdog-action=log",
	"--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK",
	"--sidecar-release-enforcement-policy=NEVER",
}

// errBoot is what a sentry that died while booting is reported as.
var errBoot = errors.New("the sentry did not come up")

// sentry is a process that booted and waits for a start or a restore.
type sentry struct {
	pid   int
	pidfd int
}

// donor collects the files that the child gets, with the flag that names each.
type donor struct {
	cmd   *exec.Cmd
	args  []string
	close []*os.File
}

// give passes f on under flag and closes this process's copy after the start.
func (d *donor) give(flag string, f *os.File) {
	d.cmd.ExtraFiles = append(d.cmd.ExtraFiles, f)
	d.close = append(d.close, f)
	if flag != "" {
		d.args = append(d.args, fmt.Sprintf("--%s=%d", flag, 2+len(d.cmd.ExtraFiles)))
	}
}

// open opens path and gives it.
func (d *donor) open(flag, path string, mode int) error {
	f, err := os.OpenFile(path, mode, 0o600)
	if err != nil {
		return err
	}
	d.give(flag, f)
	return nil
}

func (d *donor) closeAll() {
	for _, f := range d.close {
		f.Close()
	}
}

// boot starts the sentry of a sandbox whose directory is complete, and returns
// when its control socket answers. It is started by hand rather than through
// runsc's sandbox package, which would pass the daemon's own stdin and stdout to
// the guest, move the whole daemon through the sandbox's control group, and
// refuse a file-backed writable layer without a gofer (decision 0001).
//
// program is the build of Ringfence that is the sentry. started is called once the process exists and before it runs.
func (d *Driver) boot(ctx context.Context, dir string, spec driver.Spec, oci *specs.Spec, program string, flags []string, started func(pid int) error) (s *sentry, err error) {
	raw, err := json.Marshal(oci)
	if err != nil {
		return nil, err
	}
	specPath := filepath.Join(dir, "config.json")
	if err := os.WriteFile(specPath, raw, 0o600); err != nil {
		return nil, err
	}
	gateR, gateW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer gateW.Close()
	syncR, syncW, err := os.Pipe()
	if err != nil {
		gateR.Close()
		return nil, err
	}
	defer syncR.Close()

	pidfd := -1
	cmd := exec.Command(program)
	// Nothing of the daemon's. Most of what a sentry allocates to boot stays in use, and
	// collecting it again and again took a fifth of the time of a create. Later it
	// collects as usual: what it holds counts against the sandbox's hard limit.
	cmd.Env = []string{"GOGC=200"}
	cmd.Dir = "/"
	cmd.SysProcAttr = sentryAttr(&pidfd)

	don := &donor{cmd: cmd}
	defer don.closeAll()
	don.give("", gateR) // has to be the first: gateFD
	don.give("start-sync-fd", syncW)
	if err := don.open("spec-fd", specPath, os.O_RDONLY); err != nil {
		return nil, err
	}
	sock, err := server.CreateSocket(filepath.Join(dir, controlSocket))
	if err != nil {
		return nil, fmt.Errorf("cannot make the control socket: %w", err)
	}
	don.give("controller-fd", os.NewFile(uintptr(sock), "control"))
	if err := don.open("io-fds", spec.ImagePath, os.O_RDONLY); err != nil {
		return nil, err
	}
	for _, m := range oci.Mounts {
		if m.Type != "erofs" {
			continue
		}
		if err := don.open("io-fds", m.Source, os.O_RDONLY); err != nil {
			return nil, err
		}
	}
	if err := don.open("gofer-filestore-fds", filepath.Join(dir, diskFile), os.O_RDWR); err != nil {
		return nil, err
	}
	for _, name := range []string{fifoToGuest, fifoFromGuest, fifoStderr} {
		// Opened for both directions, so that neither end ever sees the other leave.
		if err := don.open("stdio-fds", filepath.Join(dir, name), os.O_RDWR); err != nil {
			return nil, err
		}
	}
	logArgs := len(don.args)
	if err := don.open("log-fd", filepath.Join(dir, sentryLog), os.O_WRONLY|os.O_APPEND|os.O_CREATE); err != nil {
		return nil, err
	}
	if err := don.open("panic-log-fd", filepath.Join(dir, sentryLog), os.O_WRONLY|os.O_APPEND); err != nil {
		return nil, err
	}

	quota := int64(spec.Size.VCPU) * cpuPeriod
	total, err := hostMemory()
	if err != nil {
		return nil, err
	}
	cmd.Args = append([]string{gatedArgv0, "--root=" + dir}, flags...)
	cmd.Args = append(cmd.Args, don.args[logArgs:]...)
	cmd.Args = append(cmd.Args, "boot", "--bundle="+dir, "--setup-root", "--apply-caps=true")
	cmd.Args = append(cmd.Args, don.args[:logArgs]...)
	cmd.Args = append(cmd.Args,
		fmt.Sprintf("--gofer-mount-confs=erofs:anon:size=%dm,erofs:none", spec.Size.DiskMiB),
		"--product-name=Ringfence", // not the host's
		// Fewer than 2 can make programs leave out locks that they need, since
		// the sentry's threads run in parallel all the same; the quota holds.
		"--cpu-num="+strconv.Itoa(max(spec.Size.VCPU, 2)),
		"--cpu-quota="+strconv.FormatInt(quota, 10),
		"--cpu-period="+strconv.FormatInt(cpuPeriod, 10),
		"--total-memory="+strconv.FormatInt(spec.Size.MemoryMiB<<20, 10),
		"--total-host-memory="+strconv.FormatInt(total, 10),
		spec.ID,
	)

	cgroupFD, err := d.cgroups.cloneInto(spec.ID)
	if err != nil {
		return nil, err
	}
	if cgroupFD != nil {
		defer cgroupFD.Close()
		cmd.SysProcAttr.UseCgroupFD = true
		cmd.SysProcAttr.CgroupFD = int(cgroupFD.Fd())
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start the sentry: %w", err)
	}
	s = &sentry{pid: cmd.Process.Pid, pidfd: pidfd}
	cmd.Process.Release()
	defer func() {
		if err != nil {
			s.kill()
			unix.Wait4(s.pid, nil, 0, nil)
			unix.Close(s.pidfd)
		}
	}()
	don.closeAll()
	if err := tame(s.pid); err != nil {
		return s, err
	}
	if cgroupFD == nil {
		if err := d.cgroups.place(spec.ID, s.pid); err != nil {
			return s, err
		}
	}
	d.at("driver.process")
	if err := started(s.pid); err != nil {
		return s, err
	}
	d.at("driver.known")
	if _, err := gateW.Write([]byte{byte(len(cmd.ExtraFiles))}); err != nil {
		return s, fmt.Errorf("%w: %w", errBoot, err)
	}
	syncR.SetReadDeadline(time.Now().Add(bootTimeout))
	defer context.AfterFunc(ctx, func() { syncR.SetReadDeadline(time.Unix(1, 0)) })()
	if n, err := syncR.Read(make([]byte, 1)); n != 1 || err != nil {
		if ctx.Err() != nil {
			return s, ctx.Err()
		}
		return s, fmt.Errorf("%w: %s", errBoot, lastLines(filepath.Join(dir, sentryLog)))
	}
	return s, nil
}

// sentryAttr puts the sentry in namespaces of its own, as nobody. The ambient
// capabilities are those of its user namespace; it needs them to build its empty
// root and drops them all before it serves the guest.
func sentryAttr(pidfd *int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Setsid: true, // a signal to the daemon's group is none to its sandboxes
		PidFD:  pidfd,
		Cloneflags: unix.CLONE_NEWIPC | unix.CLONE_NEWNS | unix.CLONE_NEWUTS |
			unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUSER,
		Credential:  &syscall.Credential{Uid: nobody, Gid: nobody},
		UidMappings: []syscall.SysProcIDMap{{ContainerID: nobody, HostID: nobody, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: nobody, HostID: nobody, Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_SETPCAP},
	}
}

// sentryOOMScore makes the kernel choose sandboxes, not the daemon, when the host as a
// whole runs out of memory.
const sentryOOMScore = "500"

// tame sets what a process inherits from the daemon and should not.
func tame(pid int) error {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(sentryOOMScore), 0o600); err != nil {
		return fmt.Errorf("cannot prepare the sentry: %w", err)
	}
	// The sentry locks memory for moments, to fault it in at once; its control
	// group bounds it. Without CAP_SYS_RESOURCE it does with less.
	unlimited := &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	_ = unix.Prlimit(pid, unix.RLIMIT_MEMLOCK, unlimited, nil)
	// A core file would hold the guest's memory.
	if err := unix.Prlimit(pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil); err != nil {
		return fmt.Errorf("cannot prepare the sentry: %w", err)
	}
	return nil
}

func (s *sentry) kill() error {
	return unix.PidfdSendSignal(s.pidfd, unix.SIGKILL, nil, 0)
}
