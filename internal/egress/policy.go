package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

// MaxEntries is how many entries each list of a policy may have.
const MaxEntries = 1000

// Proto is a protocol that can leave a sandbox.
type Proto string

// The protocols.
const (
	TCP  Proto = "tcp"
	UDP  Proto = "udp"
	ICMP Proto = "icmp" // echo requests of both families
)

// Reason says why a decision fell as it did. The list is closed.
type Reason string

// The reasons that this package gives.
const (
	ReasonAllowed        Reason = "allowed"         // an allow entry matches
	ReasonDefault        Reason = "default"         // nothing speaks against it
	ReasonDenied         Reason = "denied"          // a deny entry matches
	ReasonNotAllowed     Reason = "not_allowed"     // only what is allowed may leave, and this is not
	ReasonClosedNetwork  Reason = "closed_network"  // private, link-local, loopback, multicast, …
	ReasonHostAddress    Reason = "host_address"    // an address of the host
	ReasonPortZero       Reason = "port_zero"       //
	ReasonSMTP           Reason = "smtp"            // port 25 without an entry that names it
	ReasonQUIC           Reason = "quic"            // UDP 443 while entries with names apply
	ReasonResolver       Reason = "resolver"        // encrypted DNS while entries with names apply
	ReasonNameMissing    Reason = "name_missing"    // a name has to be announced, and none was
	ReasonNameMismatch   Reason = "name_mismatch"   // another name was announced than the policy allows there
	ReasonNameUnreadable Reason = "name_unreadable" // what the client sent cannot be checked
)

// Flow is what is decided about.
type Flow struct {
	Proto Proto
	Addr  netip.Addr
	Port  uint16 // 0 for ICMP
	// Names that the gateway resolved to Addr for this sandbox, lower case.
	Names []string
}

// Check says what a flow still has to prove.
type Check int

// The checks.
const (
	CheckNone  Check = iota
	CheckAllow       // its name has to be one of Flow.Names that an allow entry matches
	CheckDeny        // its name, if it announces one, may not match a deny entry
)

// Decision is a verdict with its reason.
type Decision struct {
	Allow  bool
	Reason Reason
	Rule   string // the entry that decided, as it was written; "" when none did
	Check  Check
}

// Policy decides what may leave one sandbox. It is immutable.
type Policy struct {
	site        *Site
	allow, deny []*entry
	closed      bool // only what is allowed may leave
	everything  bool // an allow entry matches every address and port
	allowNames  bool
	denyNames   bool
}

// EntryError is a bad entry of a policy.
type EntryError struct {
	List  string // "allow_out" or "deny_out"
	Index int    // -1: the list as a whole
	Entry string
	Err   error
}

func (e *EntryError) Error() string {
	if e.Index < 0 {
		return e.List + ": " + e.Err.Error()
	}
	return e.List + "[" + strconv.Itoa(e.Index) + "]: " + strconv.QuoteToASCII(cut(e.Entry)) + ": " + e.Err.Error()
}

func (e *EntryError) Unwrap() error { return e.Err }

func cut(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

// Parse returns the policy of a sandbox. internet is the caller's
// allow_internet_access, nil when it was not given: false denies all that is not
// allowed, true says what is so anyway. Errors are *EntryError.
func Parse(allow, deny []string, internet *bool, site *Site) (*Policy, error) {
	p := &Policy{site: site, closed: len(allow) > 0 || internet != nil && !*internet}
	var err error
	if p.allow, err = parseList("allow_out", allow); err != nil {
		return nil, err
	}
	if p.deny, err = parseList("deny_out", deny); err != nil {
		return nil, err
	}
	p.everything = slices.ContainsFunc(p.allow, func(e *entry) bool { return e.all && e.port == 0 })
	p.allowNames = slices.ContainsFunc(p.allow, (*entry).named)
	p.denyNames = slices.ContainsFunc(p.deny, (*entry).named)
	return p, nil
}

func parseList(list string, texts []string) ([]*entry, error) {
	if len(texts) > MaxEntries {
		return nil, &EntryError{List: list, Index: -1, Err: fmt.Errorf("it has %d entries, at most %d fit", len(texts), MaxEntries)}
	}
	entries := make([]*entry, len(texts))
	for i, text := range texts {
		e, err := parseEntry(text)
		if err != nil {
			return nil, &EntryError{List: list, Index: i, Entry: text, Err: err}
		}
		entries[i] = e
	}
	return entries, nil
}

func deny(reason Reason, rule string) Decision { return Decision{Reason: reason, Rule: rule} }

// Decide decides about a flow by its address.
func (p *Policy) Decide(f Flow) Decision {
	f.Addr = f.Addr.Unmap()
	if reason := p.site.Closed(f.Addr); reason != "" {
		return deny(reason, "")
	}
	if f.Proto != ICMP && f.Port == 0 {
		return deny(ReasonPortZero, "")
	}
	return p.decide(f)
}

func (p *Policy) decide(f Flow) Decision {
	smtp := f.Proto == TCP && f.Port == 25
	all := faces(f.Addr)
	for _, e := range p.allow {
		if !e.named() && e.matchPort(f) && matchAll(e, all) && (!smtp || e.port == 25) {
			return Decision{Allow: true, Reason: ReasonAllowed, Rule: e.text}
		}
	}
	if p.allowNames || p.denyNames {
		switch {
		case f.Proto == UDP && f.Port == 443:
			return deny(ReasonQUIC, "")
		case f.Proto != ICMP && f.Port == 853:
			return deny(ReasonResolver, "")
		}
	}
	if e := p.allowsName(f, f.Names...); e != nil {
		d := Decision{Allow: true, Reason: ReasonAllowed, Rule: e.text}
		if f.Proto == TCP {
			d.Check = CheckAllow
		}
		return d
	}
	for _, e := range p.deny {
		if e.matchPort(f) && (matchAny(e, all) || e.named() && slices.ContainsFunc(f.Names, e.matchName)) {
			return deny(ReasonDenied, e.text)
		}
	}
	switch {
	case smtp && (!p.closed || p.everything):
		return deny(ReasonSMTP, "")
	case p.closed:
		return deny(ReasonNotAllowed, "")
	}
	d := Decision{Allow: true, Reason: ReasonDefault}
	if p.denyNames && f.Proto == TCP {
		d.Check = CheckDeny
	}
	return d
}

// matchAll: an address that embeds another is allowed only with it.
func matchAll(e *entry, all []netip.Addr) bool {
	for _, a := range all {
		if !e.matchAddr(a) {
			return false
		}
	}
	return true
}

func matchAny(e *entry, all []netip.Addr) bool { return slices.ContainsFunc(all, e.matchAddr) }

// allowsName returns the entry that allows one of names on the flow's port.
func (p *Policy) allowsName(f Flow, names ...string) *entry {
	if !p.allowNames {
		return nil
	}
	smtp := f.Proto == TCP && f.Port == 25
	for _, e := range p.allow {
		if e.named() && e.matchPort(f) && (!smtp || e.port == 25) && slices.ContainsFunc(names, e.matchName) {
			return e
		}
	}
	return nil
}

// DecideAnnounced decides about a flow that Decide allowed, by the name that its
// client announced. It says nothing about what Decide said.
func (p *Policy) DecideAnnounced(f Flow, check Check, name string) Decision {
	name, err := checkName(name)
	switch check {
	case CheckAllow:
		if err != nil {
			return deny(ReasonNameMismatch, "")
		}
		e := p.allowsName(f, name)
		if e == nil || !slices.Contains(f.Names, name) {
			return deny(ReasonNameMismatch, "")
		}
		return Decision{Allow: true, Reason: ReasonAllowed, Rule: e.text}
	case CheckDeny:
		if err != nil { // an address, say: Decide has seen that
			return Decision{Allow: true, Reason: ReasonDefault}
		}
		for _, e := range p.deny {
			if e.named() && e.matchPort(f) && e.matchName(name) {
				return deny(ReasonDenied, e.text)
			}
		}
	}
	return Decision{Allow: true, Reason: ReasonDefault}
}

// DecideName decides whether a name may be looked up. Ports do not matter.
func (p *Policy) DecideName(name string) Decision {
	name, err := checkName(name)
	if err != nil {
		return deny(ReasonNotAllowed, "")
	}
	for _, e := range p.allow {
		if e.named() && e.matchName(name) {
			return Decision{Allow: true, Reason: ReasonAllowed, Rule: e.text}
		}
	}
	for _, e := range p.deny {
		if e.named() && e.port == 0 && e.matchName(name) {
			return deny(ReasonDenied, e.text)
		}
	}
	if p.everything {
		return Decision{Allow: true, Reason: ReasonAllowed, Rule: "0.0.0.0/0"}
	}
	for _, e := range p.deny {
		if e.all && e.port == 0 {
			return deny(ReasonDenied, e.text)
		}
	}
	if p.closed {
		return deny(ReasonNotAllowed, "")
	}
	return Decision{Allow: true, Reason: ReasonDefault}
}

// Deep reports whether names are looked at, in whatever way.
func (p *Policy) Deep() bool { return p.allowNames || p.denyNames }

// Closed says why an address is out of reach of every policy; "" when it is not.
func (p *Policy) Closed(a netip.Addr) Reason { return p.site.Closed(a) }

// DecideProxied decides about a connection to a name whose address another proxy will
// find: by the name and the port alone.
func (p *Policy) DecideProxied(name string, port uint16) Decision {
	name, err := checkName(name)
	if err != nil || port == 0 {
		return deny(ReasonNotAllowed, "")
	}
	f := Flow{Proto: TCP, Port: port, Names: []string{name}}
	if e := p.allowsName(f, name); e != nil {
		return Decision{Allow: true, Reason: ReasonAllowed, Rule: e.text, Check: CheckAllow}
	}
	for _, e := range p.deny {
		if e.named() && e.matchPort(f) && e.matchName(name) {
			return deny(ReasonDenied, e.text)
		}
	}
	if port == 25 {
		return deny(ReasonSMTP, "")
	}
	for _, e := range p.allow {
		if e.all && e.matchPort(f) {
			return Decision{Allow: true, Reason: ReasonAllowed, Rule: e.text}
		}
	}
	for _, e := range p.deny {
		if e.all && e.matchPort(f) {
			return deny(ReasonDenied, e.text)
		}
	}
	if p.closed {
		return deny(ReasonNotAllowed, "")
	}
	d := Decision{Allow: true, Reason: ReasonDefault}
	if p.denyNames {
		d.Check = CheckDeny
	}
	return d
}
