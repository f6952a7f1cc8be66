package guest

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// commandCapabilities is what root keeps in a command: what the usual container
// engines give, but for CAP_NET_RAW. Programs that install packages, serve a port
// below 1024, or become another user work. What is not here and why it matters:
//
//   - SYS_ADMIN, SYS_RESOURCE: mounts and namespaces would show the agent's /proc and
//     control groups, and both lift the limit on processes.
//   - SYS_PTRACE: would open the agent's memory and files.
//   - NET_ADMIN, NET_RAW: the network is the host's to shape.
//   - SYS_MODULE, SYS_RAWIO, SYS_BOOT, SYS_TIME, SYSLOG, MAC_*, BPF and the rest: of
//     no use inside.
var commandCapabilities = []uint{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL,
	unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_SETPCAP, unix.CAP_NET_BIND_SERVICE,
	unix.CAP_SYS_CHROOT, unix.CAP_MKNOD, unix.CAP_AUDIT_WRITE, unix.CAP_SETFCAP,
}

func commandCapabilityMask() uint64 {
	var mask uint64
	for _, c := range commandCapabilities {
		mask |= 1 << c
	}
	return mask
}

// boundThread takes from the calling thread, and from all that it starts by exec, the
// right to ever have more than a command may. The thread itself keeps what it has.
func boundThread() error {
	keep := commandCapabilityMask()
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if keep&(1<<c) != 0 {
			continue
		}
		// EINVAL: the kernel does not know a capability of that number.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL {
			return fmt.Errorf("cannot drop capability %d: %w", c, err)
		}
	}
	return setCapabilities(func(d *[2]unix.CapUserData) {
		d[0].Inheritable, d[1].Inheritable = 0, 0
	})
}

// demoteThread leaves the calling thread with a command's capabilities.
func demoteThread() error {
	if err := boundThread(); err != nil {
		return err
	}
	keep := commandCapabilityMask()
	return setCapabilities(func(d *[2]unix.CapUserData) {
		for i := range d {
			word := uint32(keep >> (32 * i))
			d[i].Permitted &= word
			d[i].Effective = d[i].Permitted
		}
	})
}

// setCapabilities changes the calling thread's sets.
func setCapabilities(change func(*[2]unix.CapUserData)) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("cannot read capabilities: %w", err)
	}
	change(&data)
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("cannot set capabilities: %w", err)
	}
	return nil
}
