package guest

import (
	"bytes"
	"math/rand"
	"testing"

	"ringfence.dev/ringfence/internal/guestproto"
)

// contents reads a log from a position to its end, one segment after the other.
func contents(l *outlog, from uint64) (stdout, stderr []byte, start uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pos := max(from, l.start)
	start = pos
	for {
		s := l.findLocked(pos)
		if s == nil {
			return stdout, stderr, start
		}
		data := s.data[pos-s.position:]
		if s.stream == guestproto.TypeStdout {
			stdout = append(stdout, data...)
		} else {
			stderr = append(stderr, data...)
		}
		pos += uint64(len(data))
	}
}

func TestLogKeepsTheTail(t *testing.T) {
	rnd := rand.New(rand.NewSource(1))
	l := newOutlog(newFreelist(), new(logMemory), logLimit)
	var all []byte
	for range 4000 {
		n := 1 + rnd.Intn(20)
		if rnd.Intn(3) == 0 {
			n = 1 + rnd.Intn(30000)
		}
		buf := l.free.get(guestproto.MaxPayload)
		rnd.Read(buf[:n])
		all = append(all, buf[:n]...)
		if !l.append(guestproto.TypeStdout, buf[:n]) {
			l.free.put(buf)
		}
		if l.cost > logLimit {
			t.Fatalf("the log holds %d bytes", l.cost)
		}
	}
	if l.end != uint64(len(all)) {
		t.Fatalf("the end is %d, want %d", l.end, len(all))
	}
	for _, from := range []uint64{0, l.start, l.start + 1, l.start + 12345, l.end - 1, l.end} {
		got, _, start := contents(l, from)
		if !bytes.Equal(got, all[start:]) {
			t.Errorf("from %d: the output differs", from)
		}
	}
	if held := l.end - l.start; held < logLimit/2 {
		t.Errorf("the log holds only %d bytes", held)
	}
}

// Output that alternates byte by byte costs more than its size; that is counted.
func TestLogCountsItsOverhead(t *testing.T) {
	l := newOutlog(newFreelist(), new(logMemory), logLimit)
	for i := range 200000 {
		typ := guestproto.TypeStdout
		if i%2 == 1 {
			typ = guestproto.TypeStderr
		}
		l.append(typ, []byte{byte(i)})
	}
	if l.cost > logLimit || len(l.segments) > logLimit/segmentCost {
		t.Errorf("%d segments cost %d", len(l.segments), l.cost)
	}
	stdout, stderr, start := contents(l, 0)
	if uint64(len(stdout)+len(stderr)) != l.end-start {
		t.Errorf("got %d and %d bytes from %d", len(stdout), len(stderr), start)
	}
}

// What ended processes left behind writes on when nobody divides the memory any more.
func TestLogsHoldTogetherWhatIsLeftForThem(t *testing.T) {
	const budget, n = 16 << 20, 100
	var total logMemory
	total.budget.Store(budget)
	var logs []*outlog
	for i := range n {
		l := newOutlog(newFreelist(), &total, logLimit)
		if i%2 == 0 {
			l.finish(guestproto.ProcessExit{})
		}
		logs = append(logs, l)
	}
	for range 2 * logLimit / (64 << 10) {
		for _, l := range logs {
			l.append(guestproto.TypeStdout, make([]byte, 64<<10))
		}
	}
	var held uint64
	for i, l := range logs {
		held += l.cost
		if i%2 == 1 && l.end-l.start < logMin/2 {
			t.Errorf("a log of a process that runs holds %d bytes", l.end-l.start)
		}
	}
	if held > budget+n/2*logMin || held != uint64(total.used.Load()) {
		t.Errorf("%d logs hold %d bytes, and say %d", n, held, total.used.Load())
	}
}

func TestLogHolds(t *testing.T) {
	l := newOutlog(newFreelist(), new(logMemory), logLimit)
	ch := newChannel(nil, 0, 1)
	l.holdFrom(ch, 0)
	for range 20 {
		l.append(guestproto.TypeStdout, make([]byte, 1<<20))
	}
	if l.start != 0 {
		t.Fatalf("%d bytes were dropped from a reader that holds the log", l.start)
	}
	l.mu.Lock()
	l.held = 5 << 20
	l.dropLocked()
	l.mu.Unlock()
	if l.start != 5<<20 {
		t.Errorf("the log begins at %d", l.start)
	}
	l.unfollow(ch)
	if l.cost > logLimit {
		t.Errorf("the log holds %d bytes without a holder", l.cost)
	}
}

func TestValidID(t *testing.T) {
	for id, want := range map[string]bool{"a": true, "A-z_9": true, "": false, "a/b": false, "..": false, "a b": false, string(make([]byte, 65)): false} {
		if validID(id) != want {
			t.Errorf("%q: got %v", id, !want)
		}
	}
}

func TestParseID(t *testing.T) {
	for s, want := range map[string]bool{"0": true, "4294967294": true, "4294967295": false, "-1": false, "x": false, "": false} {
		if _, ok := parseID(s); ok != want {
			t.Errorf("%q: got %v", s, ok)
		}
	}
}
