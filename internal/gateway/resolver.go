package gateway

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	resolvConf = "/etc/resolv.conf"
	askTimeout = 2 * time.Second  // one resolver, once
	badFor     = 20 * time.Second // a resolver that did not answer is asked last
	rounds     = 2
)

// resolver asks the host's resolvers.
type resolver struct {
	fixed []string

	mu      sync.Mutex
	servers []string // guarded by mu; from the host's configuration
	search  []string // guarded by mu; likewise
	read    time.Time
	changed time.Time            // of the file
	bad     map[string]time.Time // guarded by mu; until when
}

func newResolver(fixed []string) *resolver {
	return &resolver{fixed: fixed, bad: map[string]time.Time{}}
}

// order returns the resolvers, those that did not answer lately last.
func (r *resolver) order() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.fixed
	if len(list) == 0 {
		r.reload()
		list = r.servers
	}
	now := time.Now()
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b string) int {
		x, y := now.Before(r.bad[a]), now.Before(r.bad[b])
		switch {
		case x == y:
			return 0
		case x:
			return 1
		}
		return -1
	})
	return list
}

// reload looks at the host's configuration again when it has changed.
func (r *resolver) reload() {
	if time.Since(r.read) < time.Second {
		return
	}
	r.read = time.Now()
	info, err := os.Stat(resolvConf)
	if err == nil && info.ModTime().Equal(r.changed) && len(r.servers) > 0 {
		return
	}
	c, err := dns.ClientConfigFromFile(resolvConf)
	if err != nil {
		return
	}
	r.servers, r.search = nil, c.Search
	for _, s := range c.Servers {
		r.servers = append(r.servers, net.JoinHostPort(s, c.Port))
	}
	if info != nil {
		r.changed = info.ModTime()
	}
}

// domains returns the host's search domains.
func (r *resolver) domains() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reload()
	return slices.Clone(r.search)
}

func (r *resolver) mark(server string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ok {
		delete(r.bad, server)
		return
	}
	r.bad[server] = time.Now().Add(badFor)
}

var errNoResolver = errors.New("no resolver answers")

// ask returns the answer of the first resolver that gives one.
func (r *resolver) ask(ctx context.Context, q dns.Question) (*dns.Msg, error) {
	err := errNoResolver
	for range rounds {
		var last *dns.Msg
		for _, server := range r.order() {
			msg, aerr := askOne(ctx, server, q)
			r.mark(server, aerr == nil)
			switch {
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case aerr != nil:
				err = aerr
			case msg.Rcode == dns.RcodeSuccess || msg.Rcode == dns.RcodeNameError:
				return msg, nil
			default: // refused, or its own upstream failed: the next may know better
				last = msg
			}
		}
		if last != nil {
			return last, nil
		}
	}
	return nil, err
}

func askOne(ctx context.Context, server string, q dns.Question) (*dns.Msg, error) {
	m := new(dns.Msg)
	m.Id = dns.Id()
	m.RecursionDesired = true
	m.Question = []dns.Question{q}
	m.SetEdns0(1232, false)
	for _, network := range []string{"udp", "tcp"} {
		c := &dns.Client{Net: network, Timeout: askTimeout, UDPSize: 1232}
		answer, _, err := c.ExchangeContext(ctx, m, server)
		if err != nil {
			return nil, err
		}
		if len(answer.Question) != 1 || answer.Question[0].Qtype != q.Qtype || !strings.EqualFold(answer.Question[0].Name, q.Name) {
			return nil, errors.New("the answer is to another question")
		}
		if !answer.Truncated {
			return answer, nil
		}
	}
	return nil, errors.New("the answer is cut off over TCP")
}
