package guest

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/netip"
	"os"
	"sort"
	"strconv"
	"strings"

	"ringfence.dev/ringfence/internal/guestproto"
)

const (
	maxPorts       = 1000     // of one list
	maxProcNet     = 16 << 20 // bytes of /proc/net/tcp that are looked at
	maxPortCommand = 256      // bytes of a command line
)

// listener is a socket that waits for connections.
type listener struct {
	addr  netip.AddrPort
	inode uint64
}

// listPorts lists what listens, by port and address.
func listPorts(_ *agent, _ *channel, _ struct{}) (any, error) {
	found := listeners()
	owners := socketOwners(found)
	list := guestproto.PortList{Ports: []guestproto.PortInfo{}}
	seen := map[netip.AddrPort]bool{}
	for _, l := range found {
		if seen[l.addr] { // several processes share it
			continue
		}
		seen[l.addr] = true
		if len(list.Ports) == maxPorts {
			list.Truncated = true
			break
		}
		info := guestproto.PortInfo{Port: int(l.addr.Port()), Address: l.addr.Addr().String()}
		if pid := owners[l.inode]; pid != 0 {
			info.PID, info.Command = innerPID(pid), commandLine(pid)
		}
		list.Ports = append(list.Ports, info)
	}
	return list, nil
}

// listConnections lists the connections to other addresses than the sandbox's loopback.
func listConnections(_ *agent, _ *channel, _ struct{}) (any, error) {
	list := guestproto.ConnectionList{Connections: []guestproto.Connection{}}
	for _, text := range procNet() {
		for _, c := range parseConnections(text) {
			if len(list.Connections) == guestproto.MaxConnections {
				return list, nil
			}
			list.Connections = append(list.Connections, c)
		}
	}
	return list, nil
}

// parseConnections reads the sockets that are connected to another machine out of
// /proc/net/tcp or tcp6. A line that it cannot read is left out.
func parseConnections(text []byte) []guestproto.Connection {
	const sent, closed, listening = "02", "07", "0A" // no answer came yet; nobody to tell
	var all []guestproto.Connection
	for line := range bytes.Lines(text) {
		f := bytes.Fields(line)
		if len(f) < 4 || string(f[3]) == sent || string(f[3]) == closed || string(f[3]) == listening {
			continue
		}
		local, ok := parseProcAddr(string(f[1]))
		remote, too := parseProcAddr(string(f[2]))
		if ok && too && remote.Port() != 0 && !remote.Addr().IsLoopback() && !remote.Addr().IsUnspecified() {
			all = append(all, guestproto.Connection{Local: local, Remote: remote})
		}
	}
	return all
}

// procNet returns the kernel's lists of TCP sockets.
func procNet() [][]byte {
	var all [][]byte
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(file)
		if err != nil {
			continue // a kernel without that family
		}
		text, _ := io.ReadAll(io.LimitReader(f, maxProcNet)) // what could be read counts
		f.Close()
		all = append(all, text)
	}
	return all
}

// listeners returns the TCP sockets that listen, in order.
func listeners() []listener {
	var all []listener
	for _, text := range procNet() {
		all = append(all, parseProcNet(text)...)
	}
	sort.Slice(all, func(i, j int) bool {
		if all[i].addr.Port() != all[j].addr.Port() {
			return all[i].addr.Port() < all[j].addr.Port()
		}
		return all[i].addr.Addr().Less(all[j].addr.Addr())
	})
	return all
}

// parseProcNet reads the listening sockets out of /proc/net/tcp or tcp6, whose format is
// that of proc(5). A line that it cannot read is left out.
func parseProcNet(text []byte) []listener {
	const listening = "0A"
	var all []listener
	for line := range bytes.Lines(text) {
		f := bytes.Fields(line)
		if len(f) < 10 || string(f[3]) != listening {
			continue
		}
		addr, ok := parseProcAddr(string(f[1]))
		if !ok || addr.Port() == 0 {
			continue
		}
		inode, err := strconv.ParseUint(string(f[9]), 10, 64)
		if err != nil {
			continue
		}
		all = append(all, listener{addr, inode})
	}
	return all
}

// parseProcAddr reads ADDRESS:PORT: words of the address in the host's byte order, all in hex.
func parseProcAddr(s string) (netip.AddrPort, bool) {
	host, digits, ok := strings.Cut(s, ":")
	port, err := strconv.ParseUint(digits, 16, 16)
	if !ok || err != nil || len(digits) != 4 || len(host) != 8 && len(host) != 32 {
		return netip.AddrPort{}, false
	}
	var raw [16]byte
	for i := 0; i < len(host); i += 8 {
		word, err := strconv.ParseUint(host[i:i+8], 16, 32)
		if err != nil {
			return netip.AddrPort{}, false
		}
		binary.NativeEndian.PutUint32(raw[i/2:], uint32(word))
	}
	if len(host) == 8 {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[:4])), uint16(port)), true
	}
	return netip.AddrPortFrom(netip.AddrFrom16(raw).Unmap(), uint16(port)), true
}

// socketOwners finds for each socket a process that has it open, the lowest number first:
// a server's children often share its socket.
func socketOwners(sockets []listener) map[uint64]int {
	wanted := map[uint64]bool{}
	for _, l := range sockets {
		wanted[l.inode] = true
	}
	owners := map[uint64]int{}
	if len(wanted) == 0 {
		return owners
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return owners
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	sort.Ints(pids)
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid) + "/fd"
		fds, err := os.ReadDir(dir)
		if err != nil {
			continue // it ended
		}
		for _, fd := range fds {
			target, err := os.Readlink(dir + "/" + fd.Name())
			digits, ok := strings.CutPrefix(target, "socket:[")
			if err != nil || !ok {
				continue
			}
			inode, err := strconv.ParseUint(strings.TrimSuffix(digits, "]"), 10, 64)
			if err == nil && wanted[inode] && owners[inode] == 0 {
				owners[inode] = pid
			}
		}
		if len(owners) == len(wanted) {
			break
		}
	}
	return owners
}

// commandLine is a process's command line, cut.
func commandLine(pid int) string {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return ""
	}
	defer f.Close()
	buf := make([]byte, maxPortCommand)
	n, _ := f.Read(buf) // an error leaves nothing
	return strings.ToValidUTF8(string(bytes.ReplaceAll(bytes.TrimRight(buf[:n], "\x00"), []byte{0}, []byte{' '})), "\uFFFD")
}
