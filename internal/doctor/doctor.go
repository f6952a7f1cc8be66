// Package doctor looks whether a host can run sandboxes, and says how to mend what is in
// the way.
package doctor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Level says how bad a finding is.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Warning Level = "warning" // it works, with less or not for long
	Failure Level = "failure" // sandboxes cannot run
)

// Finding is what one check found.
type Finding struct {
	Check  string `json:"check"`
	Level  Level  `json:"level"`
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"` // what to do about it
}

// Host is where to look. The zero value is this host.
type Host struct {
	Root    string // of the file system; "/" when empty
	DataDir string // where sandboxes and snapshots will be; its disk is looked at
}

func (h Host) path(p string) string {
	if h.Root == "" {
		return p
	}
	return filepath.Join(h.Root, p)
}

func (h Host) text(p string) string {
	raw, err := os.ReadFile(h.path(p))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

func (h Host) exists(p string) bool {
	_, err := os.Stat(h.path(p))
	return err == nil
}

// number reads a file that holds a whole number; −1 when it does not.
func (h Host) number(p string) int64 {
	n, err := strconv.ParseInt(h.text(p), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// Check runs every check, in the order of a list that is read from its top.
func Check(h Host) []Finding {
	var found []Finding
	for _, c := range []func(Host) Finding{
		user, kernel, namespaces, cgroups, pidMax, threadsMax, tasksMax, mapCount, files, tun, mkfs, memory, disk, clock, kvm,
	} {
		found = append(found, c(h))
	}
	return found
}

func user(Host) Finding {
	if os.Geteuid() != 0 {
		return Finding{"user", Failure, "not root", "start the server as root: it makes namespaces and control groups, and gives up its rights in each sandbox"}
	}
	return Finding{"user", OK, "root", ""}
}

// minKernel is the first with pidfds that can be waited for, and clone with one.
var minKernel = [2]int{5, 4}

func kernel(h Host) Finding {
	release := h.text("/proc/sys/kernel/osrelease")
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return Finding{"kernel", Failure, "its version cannot be read", "is /proc mounted?"}
	}
	if major < minKernel[0] || major == minKernel[0] && minor < minKernel[1] {
		return Finding{"kernel", Failure, "Linux " + release, fmt.Sprintf("install Linux %d.%d or newer", minKernel[0], minKernel[1])}
	}
	return Finding{"kernel", OK, "Linux " + release, ""}
}

func namespaces(h Host) Finding {
	var missing []string
	for _, name := range []string{"user", "pid", "net", "mnt", "ipc", "uts"} {
		if !h.exists("/proc/self/ns/" + name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return Finding{"namespaces", Failure, "the kernel has no " + strings.Join(missing, ", "), "use a kernel with CONFIG_NAMESPACES and all kinds of them"}
	}
	if n := h.number("/proc/sys/user/max_user_namespaces"); n == 0 {
		return Finding{"namespaces", Failure, "user namespaces are switched off", "sysctl -w user.max_user_namespaces=65536"}
	} else if n > 0 && n < 2048 {
		return Finding{"namespaces", Warning, fmt.Sprintf("at most %d user namespaces, one for each sandbox", n), "sysctl -w user.max_user_namespaces=65536"}
	}
	return Finding{"namespaces", OK, "all kinds", ""}
}

func cgroups(h Host) Finding {
	if h.exists("/sys/fs/cgroup/cgroup.controllers") {
		have := strings.Fields(h.text("/sys/fs/cgroup/cgroup.controllers"))
		for _, want := range []string{"memory", "cpu"} {
			if !contains(have, want) {
				return Finding{"control groups", Failure, "version 2 without " + want, "boot the kernel without cgroup_disable=" + want + "; in a container, delegate the controller to it"}
			}
		}
		return Finding{"control groups", OK, "version 2", ""}
	}
	for _, want := range []string{"memory", "cpu"} {
		if !h.exists("/sys/fs/cgroup/" + want + "/cgroup.procs") {
			return Finding{"control groups", Failure, "there is no " + want + " controller", "mount control groups below /sys/fs/cgroup: without them no limit of a sandbox holds"}
		}
	}
	return Finding{"control groups", OK, "version 1", ""}
}

func contains(list []string, want string) bool {
	for _, s := range list {
		if s == want {
			return true
		}
	}
	return false
}

// tasksPerSandbox is about how many tasks of the host an idle sandbox has.
const tasksPerSandbox = 18

func pidMax(h Host) Finding {
	n := h.number("/proc/sys/kernel/pid_max")
	if n >= 0 && n < 131072 {
		return Finding{"process numbers", Warning, fmt.Sprintf("kernel.pid_max is %d, enough for about %d idle sandboxes", n, n/tasksPerSandbox), "sysctl -w kernel.pid_max=4194304"}
	}
	return Finding{"process numbers", OK, fmt.Sprintf("kernel.pid_max is %d", n), ""}
}

func threadsMax(h Host) Finding {
	n := h.number("/proc/sys/kernel/threads-max")
	if n >= 0 && n < 65536 {
		return Finding{"threads", Warning, fmt.Sprintf("kernel.threads-max is %d, enough for about %d idle sandboxes", n, n/tasksPerSandbox), "sysctl -w kernel.threads-max=262144"}
	}
	return Finding{"threads", OK, fmt.Sprintf("kernel.threads-max is %d", n), ""}
}

// tasksMax looks at the limit of the group that the server would be in, which systemd
// sets to 15 % of the host's.
func tasksMax(h Host) Finding {
	group := ""
	for line := range strings.Lines(h.text("/proc/self/cgroup")) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && (parts[1] == "" || parts[1] == "pids") {
			group = parts[2]
		}
	}
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/pids"} {
		if n := h.number(filepath.Join(dir, group, "pids.max")); n >= 0 && n < 65536 {
			return Finding{"tasks of a service", Warning, fmt.Sprintf("at most %d tasks, enough for about %d idle sandboxes", n, n/tasksPerSandbox),
				"set TasksMax=infinity, Delegate=yes and KillMode=process in the service's unit"}
		}
	}
	return Finding{"tasks of a service", OK, "no limit below 65536", ""}
}

func mapCount(h Host) Finding {
	n := h.number("/proc/sys/vm/max_map_count")
	if n >= 0 && n < 262144 {
		return Finding{"memory maps", Warning, fmt.Sprintf("vm.max_map_count is %d: a sandbox with many mappings may fail", n), "sysctl -w vm.max_map_count=4194304"}
	}
	return Finding{"memory maps", OK, fmt.Sprintf("vm.max_map_count is %d", n), ""}
}

func files(Host) Finding {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && limit.Max < 65536 {
		return Finding{"open files", Warning, fmt.Sprintf("at most %d", limit.Max), "raise the limit: ulimit -n 1048576, or LimitNOFILE=1048576 in the service's unit"}
	}
	return Finding{"open files", OK, fmt.Sprintf("at most %d", limit.Max), ""}
}

func tun(h Host) Finding {
	f, err := os.OpenFile(h.path("/dev/net/tun"), os.O_RDWR, 0)
	if err != nil {
		return Finding{"network devices", Failure, "/dev/net/tun cannot be opened", "modprobe tun; in a container, give it the device /dev/net/tun"}
	}
	f.Close()
	return Finding{"network devices", OK, "/dev/net/tun opens", ""}
}

func mkfs(Host) Finding {
	path, err := exec.LookPath("mkfs.erofs")
	if err != nil {
		return Finding{"mkfs.erofs", Failure, "it is not installed", "apt-get install erofs-utils"}
	}
	return Finding{"mkfs.erofs", OK, path, ""}
}

func memory(h Host) Finding {
	available := int64(-1)
	for line := range strings.Lines(h.text("/proc/meminfo")) {
		fmt.Sscanf(line, "MemAvailable: %d kB", &available)
	}
	switch mib := available >> 10; {
	case available < 0:
		return Finding{"memory", Warning, "what is available cannot be read", "is /proc mounted?"}
	case mib < 1024:
		return Finding{"memory", Failure, fmt.Sprintf("%d MiB are available", mib), "free memory, or use a host with more: a sandbox of the built-in templates may use 2048 MiB"}
	case mib < 4096:
		return Finding{"memory", Warning, fmt.Sprintf("%d MiB are available, enough for one or two sandboxes of 2048 MiB", mib), "free memory, or give sandboxes less with memory_mib"}
	default:
		return Finding{"memory", OK, fmt.Sprintf("%d MiB are available", mib), ""}
	}
}

func disk(h Host) Finding {
	dir := h.DataDir
	for dir != "/" && dir != "." && dir != "" {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return Finding{"disk", Warning, "the disk of " + h.DataDir + " cannot be looked at", "make the directory, or set data_dir"}
	}
	if gib := int64(fs.Bavail) * fs.Bsize >> 30; gib < 10 {
		return Finding{"disk", Warning, fmt.Sprintf("%d GiB are free below %s", gib, dir), "free space, or set data_dir to a larger disk: the built-in templates need 2 GiB, and each sandbox what it writes"}
	} else {
		return Finding{"disk", OK, fmt.Sprintf("%d GiB are free below %s", gib, dir), ""}
	}
}

func clock(Host) Finding {
	var t unix.Timex
	if state, err := unix.Adjtimex(&t); err == nil && (state == unix.TIME_ERROR || t.Status&unix.STA_UNSYNC != 0) {
		return Finding{"clock", Warning, "it is not synchronised", "start an NTP client, such as systemd-timesyncd: deadlines and signed links follow the wall clock"}
	}
	return Finding{"clock", OK, "synchronised", ""}
}

// kvm is for information: nothing needs it yet.
func kvm(h Host) Finding {
	f, err := os.OpenFile(h.path("/dev/kvm"), os.O_RDWR, 0)
	if err != nil {
		return Finding{"KVM", OK, "not there; gVisor does not need it", ""}
	}
	defer f.Close()
	const getAPIVersion = 0xAE00 // linux/kvm.h
	version, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), getAPIVersion, 0)
	if errno != 0 || version != 12 {
		return Finding{"KVM", OK, "/dev/kvm does not answer; gVisor does not need it", ""}
	}
	return Finding{"KVM", OK, "works; gVisor does not need it", ""}
}
