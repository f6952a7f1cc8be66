package gvisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"ringfence.dev/ringfence/internal/driver"
)

// A sandbox's network is a TAP device in the network namespace of its sentry, where
// there is nothing else but an unused loopback: no address, no route, no way on. The
// sentry holds a packet socket that is bound to the device, the gateway the device's
// other end. The device is persistent: the daemon may go and another come, and the
// sentry's socket stays good.
const (
	tapName   = "tap0"
	guestLink = "eth0"
	// socketBuffer of the packet socket, as bursts of frames of 64 KiB come in.
	socketBuffer = 4 << 20
)

// inNetwork runs f on a thread that is in the network namespace of a process. The
// thread is not used again.
func inNetwork(pid int, f func() error) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return err
	}
	defer ns.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("cannot enter the sandbox's network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// makeLink makes the TAP device and the packet socket on it.
func makeLink(pid int) (tap, socket *os.File, err error) {
	err = inNetwork(pid, func() (err error) {
		// The namespace's own stack has no part in this: no address, not even a
		// link-local one.
		for _, name := range []string{"all", "default"} {
			_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0) // without IPv6 there is none
		}
		if tap, err = attachTap(); err != nil {
			return err
		}
		if socket, err = packetSocket(); err != nil {
			tap.Close()
		}
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make the sandbox's network link: %w", err)
	}
	return tap, socket, nil
}

// reopenTap attaches to the TAP device of a sandbox that another daemon started.
func reopenTap(pid int) (tap *os.File, err error) {
	err = inNetwork(pid, func() (err error) {
		tap, err = attachTap()
		return err
	})
	return tap, err
}

// attachTap makes the TAP device of this thread's network namespace, or attaches to
// the one that is there, and takes it up.
func attachTap() (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open /dev/net/tun: %w", err)
	}
	fail := func(what string, err error) (*os.File, error) {
		unix.Close(fd)
		return nil, fmt.Errorf("cannot %s: %w", what, err)
	}
	req, err := unix.NewIfreq(tapName)
	if err != nil {
		return fail("name the device", err)
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return fail("attach to the device", err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return fail("keep the device", err)
	}
	control, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail("control the device", err)
	}
	defer unix.Close(control)
	req, _ = unix.NewIfreq(tapName)
	req.SetUint32(driver.LinkMTU)
	if err := unix.IoctlIfreq(control, unix.SIOCSIFMTU, req); err != nil {
		return fail("set the MTU", err)
	}
	req, _ = unix.NewIfreq(tapName)
	// No ARP: the device's own address is nobody's.
	req.SetUint16(unix.IFF_UP | unix.IFF_NOARP)
	if err := unix.IoctlIfreq(control, unix.SIOCSIFFLAGS, req); err != nil {
		return fail("take the device up", err)
	}
	return os.NewFile(uintptr(fd), tapName), nil
}

// packetSocket returns a socket for the frames of the device.
func packetSocket() (*os.File, error) {
	dev, err := net.InterfaceByName(tapName)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	// Protocol 0 above and all of them here: none before it is bound.
	const all = uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index}); err != nil {
		unix.Close(fd)
		return nil, err
	}
	for _, opt := range []int{unix.SO_RCVBUFFORCE, unix.SO_SNDBUFFORCE} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt, socketBuffer); err != nil {
			unix.Close(fd)
			return nil, err
		}
	}
	return os.NewFile(uintptr(fd), "link"), nil
}

// setNetwork gives the sandbox its loopback interface and its link, before it starts
// or is restored. There is no other place where a network is made.
func setNetwork(ctx context.Context, dir string, socket *os.File, restore bool) error {
	four, six := ip(driver.GatewayIPv4), ip(driver.GatewayIPv6)
	gateway := net.HardwareAddr(driver.GatewayMAC[:])
	args := &boot.CreateLinksAndRoutesArgs{
		LoopbackLinks: []boot.LoopbackLink{boot.DefaultLoopbackLink},
		IsRestore:     restore,
		FilePayload:   urpc.FilePayload{Files: []*os.File{socket}},
		FDBasedLinks: []boot.FDBasedLink{{
			Name: guestLink, MTU: driver.LinkMTU, NumChannels: 1, ProcessorsPerChannel: 1,
			LinkAddress: net.HardwareAddr(driver.GuestMAC[:]),
			Addresses: []boot.IPWithPrefix{
				{Address: ip(driver.GuestIPv4), PrefixLen: driver.GuestPrefix4},
				{Address: ip(driver.GuestIPv6), PrefixLen: driver.GuestPrefix6},
			},
			Routes: []boot.Route{
				{Destination: network(driver.GuestIPv4, driver.GuestPrefix4)},
				{Destination: network(driver.GuestIPv6, driver.GuestPrefix6)},
			},
			Neighbors: []boot.Neighbor{{IP: four, HardwareAddr: gateway}, {IP: six, HardwareAddr: gateway}},
			// Both ends are memory of this host.
			TXChecksumOffload: true, RXChecksumOffload: true,
		}},
		Defaultv4Gateway: boot.DefaultRoute{Name: guestLink, Route: boot.Route{Destination: network(netip.IPv4Unspecified(), 0), Gateway: four}},
		Defaultv6Gateway: boot.DefaultRoute{Name: guestLink, Route: boot.Route{Destination: network(netip.IPv6Unspecified(), 0), Gateway: six}},
	}
	return call(ctx, dir, boot.ContMgrSetNetworkArgs, args, nil)
}

func ip(a netip.Addr) net.IP { return net.IP(a.AsSlice()) }

func network(a netip.Addr, bits int) net.IPNet {
	p := netip.PrefixFrom(a, bits).Masked()
	return net.IPNet{IP: ip(p.Addr()), Mask: net.CIDRMask(bits, a.BitLen())}
}

// keepTap holds the host's end of the link until somebody takes it.
func (i *instance) keepTap(tap *os.File) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.freed {
		tap.Close()
		return
	}
	i.tap = tap
}

// Network hands over the host's end of the sandbox's link.
func (i *instance) Network(ctx context.Context) (*os.File, error) {
	if err := errors.Join(ctx.Err(), i.alive()); err != nil {
		return nil, err
	}
	i.mu.Lock()
	tap := i.tap
	i.tap = nil
	i.mu.Unlock()
	if tap != nil {
		return tap, nil
	}
	tap, err := reopenTap(i.pid)
	if err != nil {
		if i.alive() != nil {
			return nil, i.ended()
		}
		return nil, fmt.Errorf("cannot open the network link of sandbox %s: %w", i.id, err)
	}
	return tap, nil
}
