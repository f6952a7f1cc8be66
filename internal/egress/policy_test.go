package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func policy(t *testing.T, allow, deny string) *Policy {
	t.Helper()
	p, err := Parse(strings.Fields(allow), strings.Fields(deny), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDecide(t *testing.T) {
	yes := func(reason Reason, rule string) string { return fmt.Sprintf("allow %s %s", reason, rule) }
	no := func(reason Reason, rule string) string { return fmt.Sprintf("deny %s %s", reason, rule) }
	const host = "203.0.113.7"
	for _, tc := range []struct {
		name, allow, deny string
		flow              string // proto address port names
		want              string
	}{
		{"default allows the internet", "", "", "tcp 203.0.113.7 443", yes(ReasonDefault, "")},
		{"default allows the internet over IPv6", "", "", "tcp 2001:db8::1 443", yes(ReasonDefault, "")},
		{"default allows UDP 443", "", "", "udp 203.0.113.7 443", yes(ReasonDefault, "")},
		{"default allows ping", "", "", "icmp 203.0.113.7 0", yes(ReasonDefault, "")},
		{"SMTP is closed", "", "", "tcp 203.0.113.7 25", no(ReasonSMTP, "")},
		{"SMTP is closed under an entry without a port", host, "", "tcp 203.0.113.7 25", no(ReasonNotAllowed, "")},
		{"SMTP is closed under everything", "0.0.0.0/0", "", "tcp 203.0.113.7 25", no(ReasonSMTP, "")},
		{"SMTP opens with an entry that names it", host + ":25", "", "tcp 203.0.113.7 25", yes(ReasonAllowed, host+":25")},
		{"SMTP opens for a name", "mail.example:25", "", "tcp 203.0.113.7 25 mail.example", yes(ReasonAllowed, "mail.example:25") + " +name"},
		{"port 0", "0.0.0.0/0", "", "tcp 203.0.113.7 0", no(ReasonPortZero, "")},
		{"an allow list alone means nothing else", "198.51.100.1", "", "tcp 203.0.113.7 443", no(ReasonNotAllowed, "")},
		{"allow beats deny", host, "0.0.0.0/0", "tcp 203.0.113.7 443", yes(ReasonAllowed, host)},
		{"allow beats the same entry in deny", host, host, "tcp 203.0.113.7 443", yes(ReasonAllowed, host)},
		{"deny everything", "", "0.0.0.0/0", "tcp 203.0.113.7 443", no(ReasonDenied, "0.0.0.0/0")},
		{"deny everything means IPv6 too", "", "0.0.0.0/0", "tcp 2001:db8::1 443", no(ReasonDenied, "0.0.0.0/0")},
		{"deny everything means ping too", "", "0.0.0.0/0", "icmp 203.0.113.7 0", no(ReasonDenied, "0.0.0.0/0")},
		{"::/0 is IPv6 alone", "", "::/0", "tcp 203.0.113.7 443", yes(ReasonDefault, "")},
		{"::/0 denies IPv6", "", "::/0", "tcp 2001:db8::1 443", no(ReasonDenied, "::/0")},
		{"allow everything", "0.0.0.0/0", "", "tcp 2001:db8::1 443", yes(ReasonAllowed, "0.0.0.0/0")},
		{"a network", "", "203.0.113.0/24", "tcp 203.0.113.7 443", no(ReasonDenied, "203.0.113.0/24")},
		{"beside a network", "", "203.0.113.0/29", "tcp 203.0.113.8 443", yes(ReasonDefault, "")},
		{"a network with host bits", "", "203.0.113.9/29", "tcp 203.0.113.15 443", no(ReasonDenied, "203.0.113.9/29")},
		{"an IPv6 network", "", "2001:db8::/32", "tcp 2001:db8::1 443", no(ReasonDenied, "2001:db8::/32")},
		{"a denied port", "", "203.0.113.7:443", "tcp 203.0.113.7 443", no(ReasonDenied, "203.0.113.7:443")},
		{"beside a denied port", "", "203.0.113.7:443", "tcp 203.0.113.7 80", yes(ReasonDefault, "")},
		{"an allowed port", "203.0.113.0/24:5432", "", "tcp 203.0.113.7 5432", yes(ReasonAllowed, "203.0.113.0/24:5432")},
		{"beside an allowed port", "203.0.113.0/24:5432", "", "tcp 203.0.113.7 5433", no(ReasonNotAllowed, "")},
		{"an entry with a port does not open ping", "203.0.113.7:443", "", "icmp 203.0.113.7 0", no(ReasonNotAllowed, "")},
		{"an IPv6 address with a port", "[2001:db8::1]:443", "", "tcp 2001:db8::1 443", yes(ReasonAllowed, "[2001:db8::1]:443")},
		{"an IPv6 network with a port", "[2001:db8::/32]:443", "", "tcp 2001:db8::1 80", no(ReasonNotAllowed, "")},
		{"a mapped entry", "", "::ffff:203.0.113.7", "tcp 203.0.113.7 443", no(ReasonDenied, "::ffff:203.0.113.7")},
		{"a mapped network", "", "::ffff:203.0.113.0/120", "tcp 203.0.113.7 443", no(ReasonDenied, "::ffff:203.0.113.0/120")},
		{"a mapped address", "", host, "tcp ::ffff:203.0.113.7 443", no(ReasonDenied, host)},
		{"NAT64 of a denied address", "", host, "tcp 64:ff9b::cb00:7107 443", no(ReasonDenied, host)},
		{"6to4 of a denied address", "", host, "tcp 2002:cb00:7107::1 443", no(ReasonDenied, host)},
		{"NAT64 is not allowed by its network alone", "64:ff9b::/96", "", "tcp 64:ff9b::cb00:7107 443", no(ReasonNotAllowed, "")},

		{"a name", "api.example", "", "tcp 203.0.113.7 443 api.example", yes(ReasonAllowed, "api.example") + " +name"},
		{"an address that no name resolved to", "api.example", "", "tcp 203.0.113.7 443", no(ReasonNotAllowed, "")},
		{"an address of another name", "api.example", "", "tcp 203.0.113.7 443 other.example", no(ReasonNotAllowed, "")},
		{"a suffix", "*.example", "", "tcp 203.0.113.7 443 a.b.c.example", yes(ReasonAllowed, "*.example") + " +name"},
		{"a suffix is not its bare name", "*.x.example", "", "tcp 203.0.113.7 443 x.example", no(ReasonNotAllowed, "")},
		{"a suffix ends at a dot", "*.x.example", "", "tcp 203.0.113.7 443 ax.example", no(ReasonNotAllowed, "")},
		{"an expression", `~api[0-9]+\.example`, "", "tcp 203.0.113.7 443 api12.example", yes(ReasonAllowed, `~api[0-9]+\.example`) + " +name"},
		{"an expression matches the whole name", `~api\.example`, "", "tcp 203.0.113.7 443 api.example.evil", no(ReasonNotAllowed, "")},
		{"an expression with alternatives matches the whole name", `~a\.example|b\.example`, "", "tcp 203.0.113.7 443 xb.example", no(ReasonNotAllowed, "")},
		{"an expression with a port", `~api\.example:8443`, "", "tcp 203.0.113.7 443 api.example", no(ReasonNotAllowed, "")},
		{"upper case", "API.Example", "", "tcp 203.0.113.7 443 api.example", yes(ReasonAllowed, "API.Example") + " +name"},
		{"a name with a port", "api.example:443", "", "tcp 203.0.113.7 443 api.example", yes(ReasonAllowed, "api.example:443") + " +name"},
		{"beside a name's port", "api.example:443", "", "tcp 203.0.113.7 80 api.example", no(ReasonNotAllowed, "")},
		{"a name over UDP", "ntp.example", "", "udp 203.0.113.7 123 ntp.example", yes(ReasonAllowed, "ntp.example")},
		{"a name and ping", "api.example", "", "icmp 203.0.113.7 0 api.example", yes(ReasonAllowed, "api.example")},
		{"QUIC while names apply", "api.example", "", "udp 203.0.113.7 443 api.example", no(ReasonQUIC, "")},
		{"QUIC while names are denied", "", "evil.example", "udp 203.0.113.7 443", no(ReasonQUIC, "")},
		{"QUIC to an allowed address", host + " api.example", "", "udp 203.0.113.7 443", yes(ReasonAllowed, host)},
		{"DoT while names apply", "", "evil.example", "tcp 203.0.113.7 853", no(ReasonResolver, "")},
		{"a denied name", "", "evil.example", "tcp 203.0.113.7 443 evil.example", no(ReasonDenied, "evil.example")},
		{"beside a denied name", "", "evil.example", "tcp 203.0.113.7 443", yes(ReasonDefault, "") + " +absent"},
		{"a name beats everything denied", "api.example", "0.0.0.0/0", "tcp 203.0.113.7 443 api.example", yes(ReasonAllowed, "api.example") + " +name"},
		{"an address and a name", host + " api.example", "", "tcp 203.0.113.7 443", yes(ReasonAllowed, host)},
		{"a name that resolves into a private network", "api.example", "", "tcp 10.0.0.1 443 api.example", no(ReasonClosedNetwork, "")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := strings.Fields(tc.flow)
			var port uint16
			fmt.Sscan(f[2], &port)
			d := policy(t, tc.allow, tc.deny).Decide(Flow{Proto: Proto(f[0]), Addr: netip.MustParseAddr(f[1]), Port: port, Names: f[3:]})
			verdict := no
			if d.Allow {
				verdict = yes
			}
			if got := verdict(d.Reason, d.Rule) + []string{"", " +name", " +absent"}[d.Check]; got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.flow, got, tc.want)
			}
		})
	}
}

// Closed whatever the policy says; with what an operator opens.
func TestClosedNetworks(t *testing.T) {
	own := netip.MustParseAddr("203.0.113.200")
	site := &Site{Open: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, Own: func(a netip.Addr) bool { return a == own }}
	p, err := Parse([]string{"0.0.0.0/0", "10.0.0.0/8", "169.254.169.254", "::1", "203.0.113.200"}, nil, nil, site)
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]Reason{
		"203.0.113.7": "", "2001:db8::1": "", "10.1.2.3": "", "::ffff:10.1.2.3": "", "64:ff9b::a01:203": "", "2002:a01:203::1": "",
		"203.0.113.200": ReasonHostAddress, "::ffff:203.0.113.200": ReasonHostAddress, "64:ff9b::cb00:71c8": ReasonHostAddress,
		"0.0.0.0": ReasonClosedNetwork, "0.1.2.3": ReasonClosedNetwork, "10.0.0.1": ReasonClosedNetwork, "100.64.0.1": ReasonClosedNetwork,
		"100.100.100.200": ReasonClosedNetwork, "127.0.0.1": ReasonClosedNetwork, "127.9.9.9": ReasonClosedNetwork,
		"169.254.169.254": ReasonClosedNetwork, "172.16.0.1": ReasonClosedNetwork, "172.31.255.255": ReasonClosedNetwork, "172.32.0.1": "",
		"192.168.1.1": ReasonClosedNetwork, "192.0.0.1": ReasonClosedNetwork, "198.18.0.1": ReasonClosedNetwork, "224.0.0.251": ReasonClosedNetwork, "239.255.255.250": ReasonClosedNetwork,
		"240.0.0.1": ReasonClosedNetwork, "255.255.255.255": ReasonClosedNetwork,
		"::": ReasonClosedNetwork, "::1": ReasonClosedNetwork, "::7f00:1": ReasonClosedNetwork, "::ffff:127.0.0.1": ReasonClosedNetwork,
		"::ffff:0:7f00:1": ReasonClosedNetwork, "::ffff:169.254.169.254": ReasonClosedNetwork, "fd00::1": ReasonClosedNetwork,
		"fd00:ec2::254": ReasonClosedNetwork, "fe80::1": ReasonClosedNetwork, "fec0::1": ReasonClosedNetwork, "ff02::1": ReasonClosedNetwork,
		"64:ff9b::7f00:1": ReasonClosedNetwork, "64:ff9b::a9fe:a9fe": ReasonClosedNetwork, "64:ff9b:1::a00:1": ReasonClosedNetwork,
		"2002:7f00:1::": ReasonClosedNetwork, "2002:a00:1::1": ReasonClosedNetwork, "2002:c0a8:101::1": ReasonClosedNetwork,
		"2001:0:cb00:7107::1": ReasonClosedNetwork, "2001:db8::5efe:7f00:1": ReasonClosedNetwork, "2001:db8::200:5efe:a00:1": ReasonClosedNetwork,
	} {
		a := netip.MustParseAddr(addr)
		for _, proto := range []Proto{TCP, UDP, ICMP} {
			d := p.Decide(Flow{Proto: proto, Addr: a, Port: 80, Names: []string{"some.example"}})
			if d.Allow != (want == "") || want != "" && d.Reason != want {
				t.Errorf("%s %s: got %+v, want reason %q", proto, addr, d, want)
			}
		}
	}
}

func TestInternetAccess(t *testing.T) {
	yes, no := true, false
	flow := Flow{Proto: TCP, Addr: netip.MustParseAddr("203.0.113.7"), Port: 443}
	for _, tc := range []struct {
		allow    []string
		internet *bool
		want     bool
	}{
		{nil, &no, false}, {nil, &yes, true}, {[]string{"203.0.113.7"}, &no, true}, {[]string{"198.51.100.1"}, &yes, false},
	} {
		p, err := Parse(tc.allow, nil, tc.internet, nil)
		if err != nil {
			t.Fatal(err)
		}
		if d := p.Decide(flow); d.Allow != tc.want {
			t.Errorf("allow_out %v, allow_internet_access %v: %+v", tc.allow, *tc.internet, d)
		}
		if d := p.DecideName("x.example"); d.Allow != (tc.allow == nil && *tc.internet) {
			t.Errorf("allow_out %v, allow_internet_access %v, a name: %+v", tc.allow, *tc.internet, d)
		}
	}
}

func TestDecideName(t *testing.T) {
	for _, tc := range []struct {
		allow, deny, name string
		want              bool
		reason            Reason
	}{
		{"", "", "x.example", true, ReasonDefault},
		{"", "", "X.Example.", true, ReasonDefault},
		{"", "0.0.0.0/0", "x.example", false, ReasonDenied},
		{"", "198.51.100.0/24", "x.example", true, ReasonDefault},
		{"", "x.example", "x.example", false, ReasonDenied},
		{"", "x.example", "a.x.example", true, ReasonDefault},
		{"", "x.example:443", "x.example", true, ReasonDefault},
		{"", "*.example", "data.x.example", false, ReasonDenied},
		{"api.example", "*.example", "api.example", true, ReasonAllowed},
		{"api.example", "", "secret.evil.example", false, ReasonNotAllowed},
		{"api.example:443", "", "api.example", true, ReasonAllowed},
		{"203.0.113.7", "", "api.example", false, ReasonNotAllowed},
		{"0.0.0.0/0", "", "api.example", true, ReasonAllowed},
		{"0.0.0.0/0", "evil.example", "evil.example", false, ReasonDenied},
		{"", "", "10.1.2.3", false, ReasonNotAllowed},
		{"", "", "", false, ReasonNotAllowed},
	} {
		if d := policy(t, tc.allow, tc.deny).DecideName(tc.name); d.Allow != tc.want || d.Reason != tc.reason {
			t.Errorf("allow %q deny %q name %q: %+v", tc.allow, tc.deny, tc.name, d)
		}
	}
}

func TestBadEntriesAreNamed(t *testing.T) {
	for _, bad := range []string{
		"", " ", "*", "**.x", "*x.example", "a.*.example", "https://x.example", "x.example/path", "user@x.example", "x..example", "-x.example",
		"300.1.2.3", "1.2.3", "127.1", "0177.0.0.1", "010.0.0.1", "2130706433", "0x7f000001", "0x7f.1", "x.example.0x1", "1.2.3.4.5",
		"10.0.0.0/33", "10.0.0.0/", "10.0.0/8", "fe80::1%eth0", "2001:db8::/129", "::ffff:0.0.0.0/90",
		"x.example:0", "x.example:65536", "x.example:http", "x.example:", "10.0.0.1:+1", "[2001:db8::1", "[2001:db8::1]x", "[2001:db8::1]:0",
		"~", "~(", "~a{1001}", "~)(", "~x:0", "bücher.example", "x.example\x00", strings.Repeat("a", 64) + ".example", strings.Repeat("a.", 150) + "example",
	} {
		_, err := Parse(nil, []string{"x.example", bad}, nil, nil)
		var e *EntryError
		if !errors.As(err, &e) || e.List != "deny_out" || e.Index != 1 || e.Entry != bad {
			t.Errorf("%q: %v", bad, err)
		}
	}
	var e *EntryError
	if _, err := Parse(make([]string, MaxEntries+1), nil, nil, nil); !errors.As(err, &e) || e.List != "allow_out" || e.Index != -1 {
		t.Errorf("too many entries: %v", err)
	}
}

func TestDecideAnnounced(t *testing.T) {
	f := Flow{Proto: TCP, Addr: netip.MustParseAddr("203.0.113.7"), Port: 443, Names: []string{"api.example", "cdn.other"}}
	allow := policy(t, "api.example *.wide.example", "")
	deny := policy(t, "", "evil.example *.bad.example")
	for _, tc := range []struct {
		p     *Policy
		check Check
		name  string
		want  bool
	}{
		{allow, CheckAllow, "api.example", true},
		{allow, CheckAllow, "API.example.", true},
		{allow, CheckAllow, "x.wide.example", false}, // allowed, but not resolved to this address
		{allow, CheckAllow, "cdn.other", false},      // resolved, but not allowed
		{allow, CheckAllow, "203.0.113.7", false},
		{allow, CheckAllow, "", false},
		{deny, CheckDeny, "evil.example", false},
		{deny, CheckDeny, "EVIL.example.", false},
		{deny, CheckDeny, "a.b.bad.example", false},
		{deny, CheckDeny, "good.example", true},
		{deny, CheckDeny, "203.0.113.7", true},
	} {
		if d := tc.p.DecideAnnounced(f, tc.check, tc.name); d.Allow != tc.want {
			t.Errorf("%v %q: %+v", tc.check, tc.name, d)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"10.0.0.0/8:5432", "[2001:db8::1]:443", "*.example", "~a|b:80", "0.0.0.0/0", "::ffff:1.2.3.4/100", "x.example:443"} {
		f.Add(s)
	}
	flow := Flow{Proto: TCP, Port: 443, Names: []string{"api.example"}}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := Parse([]string{s}, []string{s}, nil, nil)
		if err != nil {
			var e *EntryError
			if !errors.As(err, &e) || strings.ContainsAny(err.Error(), "\n\x00\x1b") {
				t.Fatalf("%q: %q", s, err)
			}
			return
		}
		for _, a := range []string{"127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "fd00::1"} {
			flow.Addr = netip.MustParseAddr(a)
			if d := p.Decide(flow); d.Allow {
				t.Fatalf("%q opens %s", s, a)
			}
		}
		p.DecideName("api.example")
	})
}
