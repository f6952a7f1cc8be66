package engine

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strconv"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/egress"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

// Gateway is what sandboxes' traffic goes through.
type Gateway interface {
	// Site is what policies have to be parsed with.
	Site() *egress.Site
	// NewHistory returns the history of a new sandbox.
	NewHistory() NetworkHistory
	// Attach serves the link of a sandbox, which it takes over, until the network is
	// closed. Its history is one of NewHistory's that no other open network has.
	Attach(id string, link *os.File, policy *egress.Policy, history NetworkHistory) (Network, error)
	// ProxyURL is the HTTP proxy that sandboxes find there; "": none.
	ProxyURL() string
	// Search lists the domains in which sandboxes look up short names.
	Search() []string
}

// Network is the network of one sandbox.
type Network interface {
	// SetPolicy puts another policy in force, and cuts the flows that it denies.
	SetPolicy(*egress.Policy)
	// Reset cuts every flow, on both sides.
	Reset()
	// ResetFormer makes the sandbox see the end of a connection that it still has from
	// another network.
	ResetFormer(local, remote netip.AddrPort)
	Close()
}

// NetworkHistory is what a sandbox's networks, one after the other, went on record with.
type NetworkHistory interface {
	// Log returns rows, the cursor after them, and a channel that is closed when there is another row.
	Log(ringfence.NetworkLogQuery) (rows []ringfence.NetworkFlow, next uint64, more <-chan struct{})
	// Counters are the bytes that the sandbox sent and received, and the refused flows and lookups.
	Counters() (sent, received, denied int64)
}

// networked reports whether sandboxes have a network.
func (e *Engine) networked() bool { return e.Gateway != nil && e.Driver.Capabilities().Network }

// parsePolicy checks a policy, and returns what decides by it.
func (e *Engine) parsePolicy(p ringfence.NetworkPolicy) (*egress.Policy, error) {
	var site *egress.Site
	if e.Gateway != nil {
		site = e.Gateway.Site()
	}
	policy, err := egress.Parse(p.AllowOut, p.DenyOut, p.AllowInternetAccess, site)
	var bad *egress.EntryError
	if errors.As(err, &bad) {
		field := "network." + bad.List
		if bad.Index >= 0 {
			field += "[" + strconv.Itoa(bad.Index) + "]"
		}
		return nil, invalid(field, "network.%s", bad.Error()).
			WithHint("an entry is an address, a network such as 198.51.100.0/24, a name, *.suffix, or ~ and an RE2 expression, each with an optional :port")
	}
	if err != nil || e.networked() {
		return policy, err
	}
	const none = "sandboxes of this server have no network, so none can be given to one"
	if p.AllowInternetAccess != nil && *p.AllowInternetAccess {
		return nil, ringfence.Errorf(ringfence.CodeNotYetSupported, none).WithField("network.allow_internet_access").
			WithHint("leave network.allow_internet_access out, or set it to false")
	}
	if len(p.AllowOut) > 0 {
		return nil, ringfence.Errorf(ringfence.CodeNotYetSupported, none).WithField("network.allow_out").
			WithHint("leave network.allow_out out; policies that only deny are accepted")
	}
	return policy, nil
}

// connect gives an instance of the sandbox its network, under the policy of its row.
// It is the one way to it: after a start, a restore, and a restart of the server.
func (b *box) connect(ctx context.Context, inst driver.Instance) error {
	if !b.e.networked() {
		return nil
	}
	policy, err := b.e.parsePolicy(b.sandbox().Network)
	if err != nil {
		return err
	}
	link, err := inst.Network(ctx)
	if err != nil {
		return err
	}
	network, err := b.e.Gateway.Attach(b.id, link, policy, b.history)
	if err != nil {
		return err
	}
	b.mu.Lock()
	old := b.network
	b.network = network
	b.mu.Unlock()
	if old != nil {
		old.Close()
	}
	return nil
}

// reconnect is connect for a sandbox that had a network before, and may still have
// connections from it: it is told that they have ended as soon as its agent answers.
func (b *box) reconnect(ctx context.Context, inst driver.Instance) error {
	if err := b.connect(ctx, inst); err != nil {
		return err
	}
	b.networkNew.Store(true)
	return nil
}

// resetFormer makes the sandbox see the end of connections from before its network. What
// is sent over a link that has just come up may be lost, so it is tried until they are
// gone. One that stays ends when the sandbox says something on it.
func (b *box) resetFormer(conn *guestlink.Conn) {
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	var former map[guestproto.Connection]bool
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		list, err := conn.Connections(ctx)
		if err != nil {
			b.e.Log.Debug("a sandbox does not tell its connections", "sandbox", b.id, "error", err)
			return
		}
		b.mu.Lock()
		network := b.network
		b.mu.Unlock()
		if network == nil {
			return
		}
		still := map[guestproto.Connection]bool{}
		for _, c := range list {
			if former == nil || former[c] {
				still[c] = true
				network.ResetFormer(c.Local, c.Remote)
			}
		}
		if former = still; len(former) == 0 {
			return
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		case <-b.e.ctx.Done():
			return
		}
	}
}

// disconnect closes the network, which tells the other sides of its flows.
func (b *box) disconnect() {
	b.mu.Lock()
	network := b.network
	b.network = nil
	b.mu.Unlock()
	if network != nil {
		network.Close()
	}
}

// dns is what the agent is told of the gateway.
func (e *Engine) dns() *guestproto.DNS {
	if !e.networked() {
		return nil
	}
	return &guestproto.DNS{Servers: []string{driver.GatewayIPv4.String()}, Search: e.Gateway.Search()}
}

// SetNetwork puts another policy in place of a sandbox's own: for new flows at once,
// and open ones that it denies are cut. Errors: not_found, sandbox_ended,
// invalid_argument with the entry at fault.
func (e *Engine) SetNetwork(ctx context.Context, project, id string, p ringfence.NetworkPolicy) (*ringfence.Sandbox, error) {
	policy, err := e.parsePolicy(p)
	if err != nil {
		return nil, err
	}
	b, err := e.reach(ctx, project, id)
	if err != nil {
		return nil, err
	}
	b.moveMu.Lock()
	defer b.moveMu.Unlock()
	if b.ctx.Err() != nil {
		return nil, context.Cause(b.ctx)
	}
	if err := e.Store.SetNetwork(ctx, id, p); err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.row.Network = p
	network := b.network
	row := b.row
	b.mu.Unlock()
	if network != nil {
		network.SetPolicy(policy)
	}
	return &row, nil
}

// NetworkLog returns rows of a sandbox's network log, the oldest change first, and the
// cursor after them. With a wait it waits that long for the first row.
func (e *Engine) NetworkLog(ctx context.Context, project, id string, q ringfence.NetworkLogQuery) ([]ringfence.NetworkFlow, uint64, error) {
	b, err := e.reach(ctx, project, id)
	if err != nil {
		return nil, 0, err
	}
	if b.history == nil {
		return nil, q.After, nil
	}
	timer := time.NewTimer(q.Wait)
	defer timer.Stop()
	for {
		rows, next, more := b.history.Log(q)
		if len(rows) > 0 || q.Wait <= 0 {
			return rows, next, nil
		}
		q.After = next
		select {
		case <-more:
		case <-timer.C:
			return nil, next, nil
		case <-ctx.Done():
			return nil, next, ringfence.Errorf(ringfence.CodeOf(ctx.Err()), "the caller went away").WithCause(context.Cause(ctx))
		case <-b.ctx.Done():
			return nil, next, context.Cause(b.ctx)
		case <-e.ctx.Done():
			return nil, next, errClosing
		}
	}
}
