package egress

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// entry is one line of an allow or deny list.
type entry struct {
	text  string       // as its writer spelled it
	net   netip.Prefix // of addresses, when valid; else the entry is about names
	all   bool         // every address of both families
	name  string       // exact, lower case
	under string       // ".suffix" of a wildcard
	expr  *regexp.Regexp
	port  uint16 // 0: every port
}

const (
	maxEntryBytes = 300
	maxNameBytes  = 253
)

var (
	label   = `[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?`
	dnsName = regexp.MustCompile(`^(` + label + `\.)*` + label + `$`)
	// What looks like an address and is none must not pass as a name: some
	// resolvers read 0x7f.1, 127.1 and 2130706433 as addresses.
	numberLike = regexp.MustCompile(`(^|\.)(0x[0-9a-f]*|[0-9]+)$`)
)

// parseEntry reads one entry; the error says what is wrong with it.
func parseEntry(text string) (*entry, error) {
	e := &entry{text: text}
	s := strings.ToLower(strings.TrimSpace(text))
	switch {
	case s == "":
		return nil, fmt.Errorf("it is empty")
	case len(s) > maxEntryBytes:
		return nil, fmt.Errorf("it has %d bytes, at most %d fit", len(s), maxEntryBytes)
	}
	if s[0] == '~' {
		return e, e.parseExpr(strings.TrimSpace(text)[1:])
	}
	host, port, err := splitPort(s)
	if err != nil {
		return nil, err
	}
	e.port = port
	if ok, err := e.parseNetwork(host); ok || err != nil {
		return e, err
	}
	return e, e.parseName(host)
}

// splitPort takes an optional port off: host:443, [2001:db8::1]:443, 10.0.0.0/8:443.
func splitPort(s string) (host string, port uint16, err error) {
	if strings.HasPrefix(s, "[") {
		inner, rest, ok := strings.Cut(s[1:], "]")
		switch {
		case !ok:
			return "", 0, fmt.Errorf("its bracket is not closed")
		case rest == "":
			return inner, 0, nil
		case rest[0] != ':':
			return "", 0, fmt.Errorf("after the bracket only a port may follow")
		}
		port, err = parsePort(rest[1:])
		return inner, port, err
	}
	if strings.Count(s, ":") != 1 { // none, or an IPv6 address without a port
		return s, 0, nil
	}
	host, text, _ := strings.Cut(s, ":")
	port, err = parsePort(text)
	return host, port, err
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '+' {
		return 0, fmt.Errorf("%q is no port from 1 to 65535", s)
	}
	return uint16(n), nil
}

// parseNetwork reads an address or a network; ok is false if it is neither.
func (e *entry) parseNetwork(s string) (ok bool, err error) {
	if strings.Contains(s, "%") {
		return false, fmt.Errorf("an address with a zone cannot be reached from a sandbox")
	}
	if a, err := netip.ParseAddr(s); err == nil {
		a = a.Unmap()
		e.net = netip.PrefixFrom(a, a.BitLen())
		return true, nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		if strings.Contains(s, "/") {
			return false, fmt.Errorf("it is no network such as 198.51.100.0/24")
		}
		return false, nil
	}
	if a := p.Addr(); a.Is4In6() {
		if p.Bits() < 96 {
			return false, fmt.Errorf("it is wider than IPv4 in IPv6; write the IPv4 network")
		}
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	e.net = p.Masked()
	e.all = e.net == netip.PrefixFrom(netip.IPv4Unspecified(), 0) // which also means ::/0
	return true, nil
}

func (e *entry) parseName(s string) error {
	if s == "*" {
		return fmt.Errorf("a lone * matches nothing; write 0.0.0.0/0 for everything")
	}
	bare, wild := strings.CutPrefix(s, "*.")
	name, err := checkName(bare)
	if err != nil {
		return err
	}
	if wild {
		e.under = "." + name
	} else {
		e.name = name
	}
	return nil
}

func (e *entry) parseExpr(s string) error {
	// A name holds no colon, so a number after the last one is a port.
	if i := strings.LastIndexByte(s, ':'); i >= 0 && i+1 < len(s) && strings.Trim(s[i+1:], "0123456789") == "" {
		port, err := parsePort(s[i+1:])
		if err != nil {
			return err
		}
		e.port, s = port, s[:i]
	}
	if s == "" {
		return fmt.Errorf("the expression after ~ is empty")
	}
	if _, err := regexp.Compile(s); err != nil { // alone: it may not close the group below
		return fmt.Errorf("the expression after ~ is none of RE2: %s", exprFault(err))
	}
	expr, err := regexp.Compile(`(?i)^(?:` + s + `)$`)
	if err != nil {
		return fmt.Errorf("the expression after ~ is none of RE2: %s", exprFault(err))
	}
	e.expr = expr
	return nil
}

func exprFault(err error) string {
	return strings.TrimPrefix(err.Error(), "error parsing regexp: ")
}

// checkName returns a DNS name in the form that names are compared in.
func checkName(s string) (string, error) {
	s = strings.TrimSuffix(strings.ToLower(s), ".")
	switch {
	case s == "":
		return "", fmt.Errorf("it has no name")
	case len(s) > maxNameBytes:
		return "", fmt.Errorf("its name is longer than %d bytes", maxNameBytes)
	case strings.IndexFunc(s, func(r rune) bool { return r > 0x7e }) >= 0:
		return "", fmt.Errorf("its name is not ASCII; write it in its xn-- form")
	case numberLike.MatchString(s):
		return "", fmt.Errorf("it looks like an address and is none")
	case !dnsName.MatchString(s):
		return "", fmt.Errorf("it is neither an address, nor a network such as 198.51.100.0/24, nor a name")
	}
	return s, nil
}

// named reports whether the entry is about names.
func (e *entry) named() bool { return !e.net.IsValid() }

func (e *entry) matchName(name string) bool {
	switch {
	case e.expr != nil:
		return e.expr.MatchString(name)
	case e.under != "":
		return len(name) > len(e.under) && strings.HasSuffix(name, e.under)
	}
	return e.name != "" && e.name == name
}

func (e *entry) matchAddr(a netip.Addr) bool {
	return e.all || e.net.IsValid() && e.net.Contains(a)
}

// matchPort reports whether the entry speaks of the flow's port. Protocols without
// ports are matched by entries without one.
func (e *entry) matchPort(f Flow) bool { return e.port == 0 || f.Proto != ICMP && e.port == f.Port }
