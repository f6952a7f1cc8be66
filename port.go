package ringfence

import "time"

// Port is a TCP port of a sandbox that somebody listens on, or that was published.
type Port struct {
	Port    int
	Address string // that is listened on; empty while nobody does
	Public  bool   // anybody may reach it without a credential
	Wakes   bool   // and wakes the sandbox when it is paused
	PID     int    // of the process that listens, as programs in the sandbox see it; 0: not known
	Command string // its command line, cut; the sandbox's own word
}

// Bounds of ports.
const (
	MaxPublicPorts     = 256 // of one sandbox
	MaxPortConnections = 256 // to the ports of one sandbox at a time, from outside
	MaxLinkSeconds     = 7 * 24 * 3600
)

// Sample is what a sandbox used at one time, seen from the host but for Processes.
type Sample struct {
	At               time.Time
	CPUSeconds       float64 // since the sandbox started
	CPUPercent       float64 // of one core, since the sample before; 0 in the first
	MemoryBytes      int64   // that it takes from the host, what serves it included
	MemoryLimitBytes int64
	DiskBytes        int64 // of what was written
	DiskLimitBytes   int64
	// NetworkReceivedBytes came into the sandbox through its network and its ports,
	// NetworkSentBytes went out, both since the server's process found it.
	NetworkReceivedBytes int64
	NetworkSentBytes     int64
	// NetworkDenied is how many flows and lookups were refused, since then too.
	NetworkDenied int64
	Processes     int // processes and threads of its commands
}
