package ringfence

import (
	"net/netip"
	"time"
)

// NetworkPolicy says what may leave a sandbox. An entry is an address, a network
// such as 198.51.100.0/24, a name, *.suffix (any depth, not the bare name), or ~ and
// an RE2 expression that has to match a whole name; each with an optional :port.
// What AllowOut matches may leave whatever DenyOut says; when AllowOut is not empty,
// nothing else may. Private, link-local and other closed networks stay out of reach
// in any case, unless the operator opened them.
type NetworkPolicy struct {
	AllowOut []string
	DenyOut  []string
	// AllowInternetAccess: nil when the caller did not say; false denies all that
	// AllowOut does not match.
	AllowInternetAccess *bool
	// ClosedPorts: nothing outside reaches a port of the sandbox, with a key neither.
	ClosedPorts bool
}

// Verdict is what became of a flow.
type Verdict string

// The verdicts.
const (
	VerdictAllowed Verdict = "allowed"
	VerdictDenied  Verdict = "denied" // by the policy or a limit
	VerdictFailed  Verdict = "failed" // allowed, but the other side could not be reached
)

// Valid reports whether v is one of the closed list.
func (v Verdict) Valid() bool {
	return v == VerdictAllowed || v == VerdictDenied || v == VerdictFailed
}

// NetworkFlow is a row of a sandbox's network log.
type NetworkFlow struct {
	ID       int64 // in the order of their begin, from 1
	At       time.Time
	Name     string     // what was looked up or announced, if anything
	Address  netip.Addr // invalid for a lookup
	Port     uint16
	Protocol string // tcp, udp, icmp, dns, or a number of IP
	Verdict  Verdict
	Reason   string // why; a closed list, see docs/network.md
	Rule     string // the entry that decided, as it was written; "" when none did
	// Bytes that the sandbox sent and received, so far.
	BytesSent     int64
	BytesReceived int64
	EndedAt       time.Time // zero while it is open; the beginning for what was denied
	// Count is how often this happened in a row, for what was denied.
	Count int64
}

// NetworkLogQuery selects rows of a sandbox's network log.
type NetworkLogQuery struct {
	Verdict Verdict // "": all
	After   uint64  // cursor of the page before; 0: from the oldest that is kept
	Limit   int     // 1 or more
	Wait    time.Duration
}
