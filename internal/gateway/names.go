package gateway

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// names remembers which names were resolved to which addresses for one sandbox.
// Programs use an address longer than its TTL says, so it is kept longer.
type names struct {
	mu    sync.Mutex
	byIP  map[netip.Addr][]nameUntil
	total int
}

type nameUntil struct {
	name  string
	until time.Time
}

const (
	keepName = time.Hour // beyond the TTL
	maxNames = 8192      // pairs of a name and an address
	maxPerIP = 64
)

func (m *names) of(a netip.Addr) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	var list []string
	for _, e := range m.byIP[a.Unmap()] {
		if now.Before(e.until) {
			list = append(list, e.name)
		}
	}
	slices.Reverse(list) // the newest first
	return list
}

func (m *names) add(a netip.Addr, name string, ttl time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.byIP == nil {
		m.byIP = map[netip.Addr][]nameUntil{}
	}
	if m.total >= maxNames {
		m.shrink(now)
	}
	a = a.Unmap()
	list := slices.DeleteFunc(m.byIP[a], func(e nameUntil) bool { return e.name == name || !now.Before(e.until) })
	if len(list) >= maxPerIP {
		list = slices.Delete(list, 0, 1)
	}
	list = append(list, nameUntil{name, now.Add(ttl + keepName)})
	m.total += len(list) - len(m.byIP[a])
	m.byIP[a] = list
}

// shrink forgets what has passed, and if that is not enough half of the rest.
func (m *names) shrink(now time.Time) {
	for pass := 0; pass < 2 && m.total >= maxNames; pass++ {
		i := 0
		for a, list := range m.byIP {
			kept := slices.DeleteFunc(slices.Clone(list), func(e nameUntil) bool { return !now.Before(e.until) })
			if i++; pass == 1 && i%2 == 0 {
				kept = nil
			}
			m.total += len(kept) - len(list)
			if m.byIP[a] = kept; len(kept) == 0 {
				delete(m.byIP, a)
			}
		}
	}
}

// cache holds answers of the resolvers. Each sandbox has its own, so that none can
// measure what another has asked for.
type cache struct {
	mu      sync.Mutex
	entries map[dns.Question]cached
}

type cached struct {
	msg   *dns.Msg
	begin time.Time
	until time.Time
}

const maxCached = 512

// get returns a copy of an answer, with its TTLs as they are now.
func (c *cache) get(q dns.Question) *dns.Msg {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[q]
	now := time.Now()
	if !ok {
		return nil
	}
	if !now.Before(e.until) {
		delete(c.entries, q)
		return nil
	}
	msg := e.msg.Copy()
	age := uint32(now.Sub(e.begin) / time.Second)
	for _, section := range [][]dns.RR{msg.Answer, msg.Ns, msg.Extra} {
		for _, rr := range section {
			if h := rr.Header(); h.Rrtype != dns.TypeOPT {
				h.Ttl -= min(age, h.Ttl)
			}
		}
	}
	return msg
}

func (c *cache) put(q dns.Question, msg *dns.Msg) {
	ttl, ok := answerTTL(msg)
	if !ok || ttl <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[dns.Question]cached{}
	}
	if len(c.entries) >= maxCached {
		for k := range c.entries { // any
			delete(c.entries, k)
			break
		}
	}
	now := time.Now()
	c.entries[q] = cached{msg.Copy(), now, now.Add(ttl)}
}

// answerTTL is how long an answer holds: the shortest of its records, or for a
// negative one what its SOA says (RFC 2308).
func answerTTL(msg *dns.Msg) (time.Duration, bool) {
	const most = 3600
	ttl, found := uint32(most), false
	for _, rr := range msg.Answer {
		ttl, found = min(ttl, rr.Header().Ttl), true
	}
	if !found && (msg.Rcode == dns.RcodeNameError || msg.Rcode == dns.RcodeSuccess) {
		for _, rr := range msg.Ns {
			if soa, ok := rr.(*dns.SOA); ok {
				ttl, found = min(ttl, soa.Hdr.Ttl, soa.Minttl), true
			}
		}
	}
	return time.Duration(ttl) * time.Second, found && (msg.Rcode == dns.RcodeSuccess || msg.Rcode == dns.RcodeNameError)
}
