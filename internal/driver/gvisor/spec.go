package gvisor

import (
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"ringfence.dev/ringfence/internal/driver"
)

// Where the agent's image is mounted in every sandbox, and its name in it.
const (
	agentMount = "/.ringfence"
	agentName  = "agent"
)

// shmMiB bounds /dev/shm. It is memory, so it comes on top of a sandbox's memory
// in the host's limit.
const shmMiB = 64

// agentCapabilities is what PID 1 has inside. The agent takes most of them from
// every command. Not in the list, and so out of reach for root inside: NET_ADMIN
// and NET_RAW (the network is the host's to shape), SYS_MODULE, SYS_RAWIO,
// SYS_BOOT, SYS_TIME, MAC_*, SYSLOG, BPF, PERFMON.
var agentCapabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH",
	"CAP_FOWNER", "CAP_FSETID", "CAP_IPC_OWNER", "CAP_KILL", "CAP_LEASE",
	"CAP_LINUX_IMMUTABLE", "CAP_MKNOD", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP",
	"CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT",
	"CAP_SYS_NICE", "CAP_SYS_PTRACE", "CAP_SYS_RESOURCE",
}

func capabilitySets() *specs.LinuxCapabilities {
	caps := agentCapabilities
	return &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
}

// ociSpec describes the sandbox to the sentry. Everything in it but the hostname
// and the memory is frozen in a snapshot, so it depends on the driver's spec and
// on nothing of this host.
func ociSpec(s driver.Spec, agentImage, emptyDir string) *specs.Spec {
	return &specs.Spec{
		Version:  "1.1.0",
		Hostname: s.Hostname,
		Root:     &specs.Root{Path: emptyDir},
		Process: &specs.Process{
			Args:         []string{agentMount + "/" + agentName},
			Env:          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"},
			Cwd:          "/",
			Capabilities: capabilitySets(),
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_NOFILE", Soft: 65536, Hard: 1048576},
				{Type: "RLIMIT_CORE", Soft: 0, Hard: 0},
			},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro", "nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "dev", Source: "dev"},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts"},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{
				"nosuid", "nodev", "noexec", "mode=1777", fmt.Sprintf("size=%dm", shmMiB)}},
			// The sentry's own control groups, for the agent alone: it bounds the
			// processes of commands with them and hides them from commands.
			{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "nodev", "noexec"}},
			{Destination: agentMount, Type: "erofs", Source: agentImage, Options: []string{"ro", "nosuid", "nodev"}},
		},
		Annotations: map[string]string{
			"dev.gvisor.spec.rootfs.source": s.ImagePath,
			"dev.gvisor.spec.rootfs.type":   "erofs",
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
				{Type: specs.MountNamespace}, {Type: specs.NetworkNamespace},
			},
		},
	}
}
