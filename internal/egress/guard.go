package egress

import (
	"bytes"
	"strconv"
	"strings"
	"sync"
)

// Guard holds what a client sends on one flow back until it has announced whom it
// is for: by the server name of a TLS hello, or by each request of an HTTP/1
// connection. Methods may be called concurrently.
type Guard struct {
	check  Check
	port   uint16
	decide func(name string) Decision

	mu       sync.Mutex
	state    guardState
	kind     string // "", "tls", "http", "other"
	left     int64  // of a body or a chunk
	seen     int    // bytes that were looked at and not passed
	want     int    // how many there have to be before looking again
	requests int
	response []byte // the beginning of the server's answer, while it matters
	ready    chan struct{}
	lost     bool // the server has sent too much before the first request
	name     string
	last     Decision
}

type guardState int

const (
	atStart      guardState = iota
	atRequest               // between requests
	inBody                  // left bytes of a body
	atChunk                 // at the size of a chunk
	inChunk                 // left bytes of a chunk
	afterChunk              // at the line end after a chunk's bytes
	inTrailer               // after the last chunk
	awaitUpgrade            // until the server says whether the protocol changes
	open                    // nothing more is looked at
	shut                    // refused
)

// maxPending is how much of a client's bytes a Guard has to see at once.
const maxPending = maxHead + maxHello

// MaxPending is the size of the buffer that Pass needs.
const MaxPending = maxPending

// NewGuard returns a guard for a flow that has to pass check. decide is asked for
// each name that the client announces.
func NewGuard(check Check, port uint16, decide func(name string) Decision) *Guard {
	return &Guard{check: check, port: port, decide: decide, ready: make(chan struct{})}
}

// Name is the last name that was announced, and Kind how: "tls", "http", or "other"
// for protocols that announce none.
func (g *Guard) Name() (name, kind string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.name, g.kind
}

// Open reports whether all further bytes may pass unseen.
func (g *Guard) Open() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state == open
}

// Waiting reports whether the guard waits for the server's answer, and not for more
// of the client's bytes; Ready is closed when it has that.
func (g *Guard) Waiting() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state == awaitUpgrade
}

// Ready is closed when the server has answered a request to change the protocol.
func (g *Guard) Ready() <-chan struct{} { return g.ready }

// Pass is given the bytes that the client sent and that were not passed yet. It
// returns how many of them may be forwarded; the rest has to be given again, with
// more. When it returns false the flow is refused for the decision's reason.
func (g *Guard) Pass(b []byte) (n int, d Decision, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(b) < g.want {
		return 0, g.last, true
	}
	for {
		step, again := g.step(b[n:])
		n += step
		if g.seen = 0; step == 0 && !again && (g.state == atStart || g.state == atRequest) {
			g.seen = len(b) - n
		}
		if g.state == shut {
			return n, g.last, false
		}
		if !again {
			if len(b)-n >= maxPending || g.want > maxPending {
				g.refuse(ReasonNameUnreadable)
				return n, g.last, false
			}
			return n, g.last, true
		}
	}
}

func (g *Guard) refuse(reason Reason) { g.state, g.last = shut, deny(reason, "") }

// step does one thing; again says whether there may be more to do with what follows.
func (g *Guard) step(b []byte) (n int, again bool) {
	switch g.state {
	case atStart:
		return 0, g.start(b)
	case open:
		return len(b), false
	case inBody, inChunk:
		n = int(min(g.left, int64(len(b))))
		if g.left -= int64(n); g.left > 0 {
			return n, false
		}
		if g.state == inChunk {
			g.state = afterChunk
		} else {
			g.state = atRequest
		}
		return n, true
	case atRequest:
		return g.request(b)
	case atChunk:
		return g.chunk(b)
	case afterChunk:
		switch {
		case len(b) < 2:
			return 0, false
		case b[0] != '\r' || b[1] != '\n':
			g.refuse(ReasonNameUnreadable)
			return 0, false
		}
		g.state = atChunk
		return 2, true
	case inTrailer:
		return g.trailer(b)
	}
	return 0, false
}

// start finds out what the client speaks.
func (g *Guard) start(b []byte) (again bool) {
	if len(b) == 0 {
		return false
	}
	switch looksTLS(b) {
	case needMore:
		return false
	case complete:
		g.kind = "tls"
		name, p, want := serverName(b)
		switch {
		case p == needMore:
			g.want = want
			return false
		case p == malformed:
			g.refuse(ReasonNameUnreadable)
		case name == "" && g.check == CheckAllow:
			g.refuse(ReasonNameMissing)
		case name == "" || g.announce(name):
			g.state, g.want = open, 0
		}
		return g.state == open
	case malformed:
	}
	switch looksHTTP(b, g.seen) {
	case needMore:
		return false
	case complete:
		g.kind, g.state = "http", atRequest
		return true
	case malformed:
	}
	g.kind = "other"
	if g.check == CheckAllow && (g.port == 443 || g.port == 80) {
		g.refuse(ReasonNameMissing)
		return false
	}
	g.state, g.last = open, Decision{Allow: true, Reason: ReasonAllowed}
	return true
}

func (g *Guard) announce(name string) bool {
	g.name = strings.TrimSuffix(strings.ToLower(name), ".")
	if g.last = g.decide(name); !g.last.Allow {
		g.state = shut
		return false
	}
	return true
}

func (g *Guard) request(b []byte) (n int, again bool) {
	if len(b) == 0 || moreOfHead(b, g.seen) {
		return 0, false
	}
	r, p := parseRequest(b)
	switch {
	case p == needMore:
		return 0, false
	case p == malformed:
		g.refuse(ReasonNameUnreadable)
		return 0, false
	case len(r.hosts) == 0 && g.check == CheckAllow:
		g.refuse(ReasonNameMissing)
		return 0, false
	}
	for _, host := range r.hosts {
		name, ok := hostName(host)
		if !ok {
			g.refuse(ReasonNameUnreadable)
			return 0, false
		}
		if !g.announce(name) {
			return 0, false
		}
	}
	g.requests++
	switch {
	case r.upgrade != "":
		// Whether the connection changes its protocol is for the server to say, and
		// its answer can be found only as the first one.
		if g.requests > 1 || r.length != 0 || g.lost {
			g.refuse(ReasonNameUnreadable)
			return 0, false
		}
		g.state = awaitUpgrade
		if r.upgrade != "websocket" {
			g.kind = "http-upgrade"
		}
		g.judge()
	case r.length < 0:
		g.state = atChunk
	case r.length > 0:
		g.state, g.left = inBody, r.length
	default:
		g.state = atRequest
	}
	return r.size, g.state != shut
}

// chunk reads the line before a chunk (RFC 9112 §7.1).
func (g *Guard) chunk(b []byte) (n int, again bool) {
	end := bytes.Index(b, []byte("\r\n"))
	if end < 0 {
		if len(b) > 4096 || bareLineEnd(b) {
			g.refuse(ReasonNameUnreadable)
		}
		return 0, false
	}
	size, _, _ := bytes.Cut(b[:end], []byte(";"))
	text := strings.TrimRight(string(size), " \t")
	left, err := strconv.ParseUint(text, 16, 62)
	if err != nil || end > 4096 || bareLineEnd(b[:end+2]) || strings.Trim(text, "0123456789abcdefABCDEF") != "" {
		g.refuse(ReasonNameUnreadable)
		return 0, false
	}
	if left == 0 {
		g.state = inTrailer
		return end + 2, true
	}
	g.state, g.left = inChunk, int64(left)
	return end + 2, true
}

func (g *Guard) trailer(b []byte) (n int, again bool) {
	end := bytes.Index(b, []byte("\r\n"))
	switch {
	case end < 0 && (len(b) > maxHead || bareLineEnd(b)), end >= 0 && bareLineEnd(b[:end+2]):
		g.refuse(ReasonNameUnreadable)
		return 0, false
	case end < 0:
		return 0, false
	case end == 0:
		g.state = atRequest
	case !bytes.Contains(b[:end], []byte(":")):
		g.refuse(ReasonNameUnreadable)
		return 0, false
	}
	return end + 2, true
}

// Answered is given what the server sends, in order, until it returns false: then it
// does not matter any more. It has to be called before those bytes are forwarded.
func (g *Guard) Answered(b []byte) (more bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state == open || g.state == shut || g.kind == "tls" || g.requests > 1 || len(g.response) > maxHead {
		g.response, g.lost = nil, true
		return false
	}
	g.response = append(g.response, b[:min(len(b), maxHead)]...)
	return g.judge()
}

// judge looks whether the server took an upgrade. Interim answers may come before.
func (g *Guard) judge() (more bool) {
	if g.state != awaitUpgrade {
		return true
	}
	b := g.response
	for {
		if len(b) < 13 {
			return true
		}
		code, ok := statusCode(b)
		switch {
		case !ok:
			g.refuse(ReasonNameUnreadable)
		case code == 101 && g.kind == "http":
			g.state = open
		case code == 101: // to a protocol that nobody looks into
			g.refuse(ReasonNameUnreadable)
		case code >= 200:
			g.state = atRequest
		default:
			end := bytes.Index(b, []byte("\r\n\r\n"))
			if end < 0 {
				return true
			}
			b = b[end+4:]
			continue
		}
		g.response = nil
		close(g.ready)
		return false
	}
}

func statusCode(b []byte) (int, bool) {
	if !bytes.HasPrefix(b, []byte("HTTP/1.")) || b[8] != ' ' {
		return 0, false
	}
	code, err := strconv.ParseUint(string(b[9:12]), 10, 16)
	return int(code), err == nil && code >= 100
}
