package gateway

import (
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/miekg/dns"
)

// A resolver that refuses, one that fails and one that is not there lead to the next; the
// one that is not there is asked last from then on. All that refuse: that is the answer.
func TestFailover(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	server := func(name string, rcode int) string {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := &dns.Server{PacketConn: c, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			mu.Lock()
			asked = append(asked, name)
			mu.Unlock()
			reply := new(dns.Msg)
			reply.SetRcode(q, rcode)
			if rcode == dns.RcodeSuccess {
				h := dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}
				reply.Answer = append(reply.Answer, &dns.A{Hdr: h, A: net.IPv4(203, 0, 113, 7)})
			}
			_ = w.WriteMsg(reply) // one that is lost is asked for again
		})}
		go s.ActivateAndServe()
		t.Cleanup(func() { s.Shutdown() })
		return c.LocalAddr().String()
	}
	gone, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := gone.LocalAddr().String()
	gone.Close()
	refuses, fails, knows := server("refuses", dns.RcodeRefused), server("fails", dns.RcodeServerFailure), server("knows", dns.RcodeSuccess)
	q := dns.Question{Name: "api.test.", Qtype: dns.TypeA, Qclass: dns.ClassINET}

	r := newResolver([]string{dead, refuses, fails, knows})
	for range 2 {
		answer, err := r.ask(t.Context(), q)
		if err != nil || len(answer.Answer) != 1 {
			t.Fatalf("%v %v", answer, err)
		}
	}
	mu.Lock()
	got := slices.Clone(asked)
	mu.Unlock()
	if want := []string{"refuses", "fails", "knows", "refuses", "fails", "knows"}; !slices.Equal(got, want) {
		t.Errorf("asked %q, want %q", got, want)
	}
	if order := r.order(); order[len(order)-1] != dead {
		t.Errorf("the one that is not there is asked before others: %q", order)
	}
	if answer, err := newResolver([]string{refuses, dead}).ask(t.Context(), q); err != nil || answer.Rcode != dns.RcodeRefused {
		t.Errorf("nobody knows: %v %v", answer, err)
	}
	if _, err := newResolver([]string{dead}).ask(t.Context(), q); err == nil {
		t.Error("nobody is there, and there is an answer")
	}
}
