package gateway

import (
	"net/netip"
	"sync"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/egress"
)

// The reasons of the gateway, beside those of package egress.
const (
	reasonFlows       egress.Reason = "limit_flows"      // too many at a time
	reasonFlowRate    egress.Reason = "limit_flow_rate"  // too many new ones in a second
	reasonDNSRate     egress.Reason = "limit_dns_rate"   // too many lookups in a second
	reasonUnreachable egress.Reason = "unreachable"      // the other side did not answer, or refused
	reasonMulticast   egress.Reason = "multicast"        // or broadcast
	reasonOptions     egress.Reason = "ip_options"       // packets with IP options or extension headers
	reasonProtocol    egress.Reason = "protocol"         // neither TCP, nor UDP, nor an echo request
	reasonSource      egress.Reason = "source_address"   // not the sandbox's own
	reasonAnswer      egress.Reason = "private_answer"   // a name that resolves into a closed network
	reasonPolicy      egress.Reason = "policy_changed"   // cut by a change of the policy
	reasonNoProof     egress.Reason = "name_not_checked" // began before names were looked at
)

const keepRows = 1000

// flowLog is the newest rows of one sandbox. Writing never waits for a reader.
type flowLog struct {
	mu    sync.Mutex
	ring  []logEntry // grows to keepRows, then is written round
	next  uint64     // sequence of the next entry; the first is 1
	more  chan struct{}
	begun int64 // rows
}

// logEntry is a place of a row. A row that changes moves to the end; its older place is stale.
type logEntry struct {
	seq uint64
	row *logRow
}

type logRow struct {
	ringfence.NetworkFlow
	seq uint64 // of its newest place
}

// add appends a row, or counts it where the newest one says the same.
func (l *flowLog) add(f ringfence.NetworkFlow) *logRow {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := l.last(); last != nil && f.Verdict != ringfence.VerdictAllowed && same(last.NetworkFlow, f) && f.At.Sub(last.At) < time.Second {
		last.Count++
		return last
	}
	l.begun++
	f.ID, f.Count = l.begun, 1
	row := &logRow{NetworkFlow: f}
	l.put(row)
	return row
}

func same(a, b ringfence.NetworkFlow) bool {
	return a.Verdict == b.Verdict && a.Protocol == b.Protocol && a.Name == b.Name && a.Address == b.Address && a.Port == b.Port && a.Reason == b.Reason
}

func (l *flowLog) last() *logRow {
	if len(l.ring) == 0 {
		return nil
	}
	return l.ring[(l.next-1)%uint64(cap(l.ring))].row
}

func (l *flowLog) put(row *logRow) {
	if l.ring == nil {
		l.ring = make([]logEntry, 0, 32)
	}
	row.seq = l.next
	e := logEntry{l.next, row}
	l.next++
	switch {
	case len(l.ring) < cap(l.ring):
		l.ring = append(l.ring, e)
	case cap(l.ring) < keepRows: // in order still: nothing was written round yet
		bigger := make([]logEntry, len(l.ring), min(2*cap(l.ring), keepRows))
		copy(bigger, l.ring)
		l.ring = append(bigger, e)
	default:
		l.ring[e.seq%keepRows] = e
	}
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
}

// change alters a row and moves it to the end, where those who follow see it.
func (l *flowLog) change(row *logRow, how func(*ringfence.NetworkFlow)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	how(&row.NetworkFlow)
	l.put(row)
}

// page returns at most limit rows that were written or changed after the cursor
// and that keep says yes to, oldest change first, and the cursor after them.
// more is closed when there is another row.
func (l *flowLog) page(after uint64, limit int, keep func(*ringfence.NetworkFlow) bool) (rows []ringfence.NetworkFlow, next uint64, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := uint64(0)
	if n := uint64(len(l.ring)); l.next > n {
		first = l.next - n
	}
	if after > l.next { // of another life of the server
		after = 0
	}
	next = max(after, first)
	for ; next < l.next && len(rows) < limit; next++ {
		e := l.ring[next%uint64(cap(l.ring))]
		if e.row.seq == e.seq && keep(&e.row.NetworkFlow) {
			rows = append(rows, e.row.NetworkFlow)
		}
	}
	if l.more == nil {
		l.more = make(chan struct{})
	}
	return rows, next, l.more
}

// note logs what was not let through.
func (n *Network) note(proto string, name string, addr netip.Addr, port uint16, verdict ringfence.Verdict, d egress.Decision) {
	if verdict == ringfence.VerdictDenied {
		n.g.Denied.Add(1)
		n.denied.Add(1)
	}
	n.flows.add(ringfence.NetworkFlow{
		At: time.Now().UTC(), Name: name, Address: addr, Port: port, Protocol: proto,
		Verdict: verdict, Reason: string(d.Reason), Rule: d.Rule, EndedAt: time.Now().UTC(),
	})
}
