package gateway

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/egress"
)

// flow is one that was let through.
type flow struct {
	n       *Network
	addr    egress.Flow // Names as they were at its begin
	guard   *egress.Guard
	check   egress.Check
	proxied string // the name, where another proxy finds its address
	row     *logRow
	limit   time.Duration // idle
	reset   func()        // ends both sides at once
	once    sync.Once
	active  atomic.Int64 // when bytes moved last, in ns since 1970
	sent    atomic.Int64
	recv    atomic.Int64
	halfEnd atomic.Bool // one side has said its last
	done    chan struct{}
}

// How long a flow may be silent.
const (
	idleTCP  = 2 * time.Hour
	idleHalf = 10 * time.Minute // after one side has ended
	idleUDP  = 90 * time.Second
	idleEcho = 30 * time.Second
)

// begin decides about a new flow, up to what it still has to prove, and refuses it
// with its row in the log. The limits come first: they bound what a refusal costs.
func (n *Network) begin(proto egress.Proto, addr netip.Addr, port uint16) (egress.Flow, egress.Decision, bool) {
	f := egress.Flow{Proto: proto, Addr: addr.Unmap(), Port: port}
	refuse := func(d egress.Decision) (egress.Flow, egress.Decision, bool) {
		name := ""
		if len(f.Names) > 0 {
			name = f.Names[0]
		}
		n.note(string(proto), name, addr, port, ringfence.VerdictDenied, d)
		return f, d, false
	}
	if !n.newFlows.Allow() {
		return refuse(egress.Decision{Reason: reasonFlowRate})
	}
	f.Names = n.names.of(f.Addr)
	d := n.policy.Load().Decide(f)
	if !d.Allow {
		return refuse(d)
	}
	if n.full() {
		return refuse(egress.Decision{Reason: reasonFlows})
	}
	return f, d, true
}

// admitNew counts a new flow, and refuses one that is over a limit.
func (n *Network) admitNew() egress.Decision {
	switch {
	case !n.newFlows.Allow():
		return egress.Decision{Reason: reasonFlowRate}
	case n.full():
		return egress.Decision{Reason: reasonFlows}
	}
	return egress.Decision{Allow: true}
}

func (n *Network) full() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.open) >= n.g.limits.Flows
}

// admit puts a flow among those that are open. false: it came too late.
func (n *Network) admit(f egress.Flow, d egress.Decision, limit time.Duration, reset func()) (*flow, bool) {
	return n.enlist(&flow{n: n, addr: f, check: d.Check, limit: limit, reset: reset, done: make(chan struct{})}, d)
}

// admitProxied is admit for a flow through another proxy.
func (n *Network) admitProxied(f egress.Flow, d egress.Decision, name string, reset func()) (*flow, bool) {
	fl := &flow{n: n, addr: f, check: d.Check, limit: idleTCP, reset: reset, done: make(chan struct{})}
	if !f.Addr.IsValid() {
		fl.proxied = name
	}
	return n.enlist(fl, d)
}

func (n *Network) enlist(fl *flow, d egress.Decision) (*flow, bool) {
	f := fl.addr
	if d.Check != egress.CheckNone {
		fl.guard = egress.NewGuard(d.Check, f.Port, fl.decideName)
	}
	fl.touch()
	name := ""
	if len(f.Names) > 0 {
		name = f.Names[0]
	}
	n.mu.Lock()
	// Others may have been let in since begin looked, while this one was dialled.
	full := len(n.open) >= n.g.limits.Flows
	if !full {
		fl.row = n.flows.add(ringfence.NetworkFlow{
			At: time.Now().UTC(), Name: name, Address: f.Addr, Port: f.Port, Protocol: string(f.Proto),
			Verdict: ringfence.VerdictAllowed, Reason: string(d.Reason), Rule: d.Rule,
		})
		n.open[fl] = struct{}{}
	}
	n.mu.Unlock()
	if full {
		n.note(string(f.Proto), name, f.Addr, f.Port, ringfence.VerdictDenied, egress.Decision{Reason: reasonFlows})
		fl.reset()
		return nil, false
	}
	// The network may have closed, or its policy changed, since the decision.
	if n.ctx.Err() != nil {
		fl.cut(egress.Decision{})
		return nil, false
	}
	if again := fl.decideAgain(); !again.Allow {
		fl.cut(again)
		return nil, false
	}
	return fl, true
}

func (f *flow) touch() { f.active.Store(time.Now().UnixNano()) }

func (f *flow) idle(now time.Time) bool {
	limit := f.limit
	if f.halfEnd.Load() {
		limit = min(limit, idleHalf)
	}
	return now.UnixNano()-f.active.Load() > int64(limit)
}

// decideName is what the guard asks about a name, under the policy of this moment.
func (f *flow) decideName(name string) egress.Decision {
	p := f.n.policy.Load()
	d := f.decide(p)
	if !d.Allow || d.Check == egress.CheckNone {
		return d
	}
	return p.DecideAnnounced(f.addr, d.Check, name)
}

func (f *flow) decide(p *egress.Policy) egress.Decision {
	if f.proxied != "" {
		return p.DecideProxied(f.proxied, f.addr.Port)
	}
	return p.Decide(f.addr)
}

// oneRequest reports whether the flow is one request that its proxy has looked at.
func (f *flow) oneRequest() bool { return f.proxied != "" && f.guard == nil }

// decideAgain decides about an open flow under the policy of this moment.
func (f *flow) decideAgain() egress.Decision {
	p := f.n.policy.Load()
	d := f.decide(p)
	if !d.Allow || d.Check == egress.CheckNone || f.oneRequest() {
		return d
	}
	if f.guard == nil || f.check == egress.CheckDeny && d.Check == egress.CheckAllow {
		return egress.Decision{Reason: reasonNoProof}
	}
	if name, kind := f.guard.Name(); kind == "tls" || name != "" {
		if name == "" && d.Check == egress.CheckDeny {
			return d
		}
		return p.DecideAnnounced(f.addr, d.Check, name)
	}
	return d
}

// cut ends a flow at once, on both sides. A decision that does not allow becomes
// its verdict.
func (f *flow) cut(d egress.Decision) {
	f.finish(func(row *ringfence.NetworkFlow) {
		if !d.Allow && d.Reason != "" {
			row.Verdict, row.Reason, row.Rule = ringfence.VerdictDenied, string(d.Reason), d.Rule
			f.n.denied.Add(1)
			f.n.g.Denied.Add(1)
		}
	})
	f.reset()
}

// finish writes the end of a flow into its row, once.
func (f *flow) finish(how func(*ringfence.NetworkFlow)) {
	f.once.Do(func() {
		close(f.done)
		f.n.mu.Lock()
		delete(f.n.open, f)
		f.n.mu.Unlock()
		f.n.flows.change(f.row, func(row *ringfence.NetworkFlow) {
			row.BytesSent, row.BytesReceived, row.EndedAt = f.sent.Load(), f.recv.Load(), time.Now().UTC()
			if f.guard != nil {
				if name, _ := f.guard.Name(); name != "" {
					row.Name = name
				}
			}
			if how != nil {
				how(row)
			}
		})
	})
}
