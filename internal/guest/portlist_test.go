package guest

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestParseProcNet(t *testing.T) {
	const text = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0
   1: 0100007F:1F91 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 4712 1
   2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1
   3: 00000000000000000000000001000000:1F92 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4714 1
   4: 0100007F:1F93 00000000:0000 0A 00000000
   5: 0100007:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1
   6: 0100007F:FFFFF 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1
   7: 0100007F:0000 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1
   8: 0000000000000000FFFF00000100007F:1F94 0:0 0A 0 0 0 0 0 x
   9: 0000000000000000FFFF00000100007F:1F94 0:0 0A 0 0 0 0 0 1
`
	var got string
	for _, l := range parseProcNet([]byte(text)) {
		got += fmt.Sprintf("%v %d, ", l.addr, l.inode)
	}
	if want := "127.0.0.1:8080 4711, 0.0.0.0:22 4713, [::1]:8082 4714, 127.0.0.1:8084 1, "; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestParseConnections(t *testing.T) {
	const text = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 020000C0:3FD5 077100CB:1B5D 01 00000000:00000000
   1: 0100007F:1F91 0100007F:D431 01 00000000:00000000
   2: 00000000:0016 00000000:0000 0A 00000000:00000000
   3: 020000C0:3FD6 077100CB:1B5D 02 00000000:00000000
   4: 020000C0:3FD7 077100CB:1B5D 08 00000000:00000000
   5: 0000000000000000FFFF0000020000C0:3FD8 0000000000000000FFFF0000077100CB:1B5D 05 0
   6: 020000C0:3FD9 077100CB:1B5D 07 00000000:00000000
   7: 020000C0:3FD9 x:1B5D 01
`
	var got string
	for _, c := range parseConnections([]byte(text)) {
		got += fmt.Sprintf("%v-%v, ", c.Local, c.Remote)
	}
	want := "192.0.0.2:16341-203.0.113.7:7005, 192.0.0.2:16343-203.0.113.7:7005, 192.0.0.2:16344-203.0.113.7:7005, "
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// FuzzParseProcNet: whatever stands there, what comes out are addresses with a port.
func FuzzParseProcNet(f *testing.F) {
	f.Add([]byte("   0: 0100007F:1F90 00000000:0000 0A 0:0 0:0 0 0 0 4711 1\n"))
	f.Add([]byte("   0: 00000000000000000000000001000000:1F90 : 0A 0:0 0:0 0 0 0 4711 1\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		all := parseProcNet(text)
		if len(all) > strings.Count(string(text), "\n")+1 {
			t.Errorf("%d sockets out of %q", len(all), text)
		}
		for _, c := range parseConnections(text) {
			if !c.Local.IsValid() || !c.Remote.IsValid() || c.Remote.Port() == 0 {
				t.Errorf("%v", c)
			}
		}
		for _, l := range all {
			if !l.addr.IsValid() || l.addr.Port() == 0 || l.addr.Addr().Zone() != "" {
				t.Errorf("%v", l)
			}
			if _, err := netip.ParseAddrPort(l.addr.String()); err != nil {
				t.Error(err)
			}
		}
	})
}
