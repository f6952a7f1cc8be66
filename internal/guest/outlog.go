package guest

import (
	"math"
	"sync"
	"sync/atomic"

	"ringfence.dev/ringfence/internal/guestproto"
)

const (
	// logLimit is how much of its output a process's log keeps, in bytes.
	logLimit = 8 << 20
	// maxLogLimit is the most that a process may have.
	maxLogLimit = 64 << 20
	// logTotal bounds all logs together, as does a sixteenth of the sandbox's memory;
	// where many processes are noisy, each keeps less.
	logTotal = 64 << 20
	// logMin is what a log keeps whatever the others do.
	logMin = 64 << 10
	// logLeft is what is kept then of a process that has ended, whose own children still write.
	logLeft = 16 << 10
	// mergeLimit is the size up to which output is copied behind that before it.
	mergeLimit = 4 << 10
	// mergedSize is how long a segment of such pieces gets.
	mergedSize = 64 << 10
	// segmentCost is what a segment costs beside its data: output that alternates byte
	// by byte between the streams must not cost a hundred times its size.
	segmentCost = 128
)

// segment is a piece of one stream in a log.
type segment struct {
	stream   guestproto.Type
	position uint64
	data     []byte
	readers  int  // that are sending data right now; guarded by the log's mu
	dropped  bool // the log does not hold it any more; likewise
}

func (s *segment) cost() uint64 { return segmentCost + uint64(cap(s.data)) }

func (s *segment) end() uint64 { return s.position + uint64(len(s.data)) }

// logMemory is what all logs have together.
type logMemory struct {
	used   atomic.Int64
	budget atomic.Int64 // 0: not known yet
}

func (m *logMemory) over() bool {
	budget := m.budget.Load()
	return budget > 0 && m.used.Load() > budget
}

// outlog is the numbered output of one process.
type outlog struct {
	free  freelist
	total *logMemory

	mu       sync.Mutex
	room     sync.Cond // the log may take more
	segments []*segment
	start    uint64                // position of the oldest byte; guarded by mu
	end      uint64                // guarded by mu
	cost     uint64                // memory of all segments; guarded by mu
	limit    uint64                // of cost; guarded by mu
	holder   *channel              // nothing is dropped before it was sent there; guarded by mu
	held     uint64                // how far holder is; guarded by mu
	readers  map[*channel]struct{} // who wants to know of new output; guarded by mu
	exit     *guestproto.ProcessExit
}

func newOutlog(free freelist, total *logMemory, limit uint64) *outlog {
	l := &outlog{free: free, total: total, limit: limit, readers: make(map[*channel]struct{})}
	l.room.L = &l.mu
	return l
}

// append takes the output in data, and reports whether it kept the memory.
func (l *outlog) append(stream guestproto.Type, data []byte) (kept bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.cost
	last := l.lastLocked()
	if len(data) <= mergeLimit && last != nil && last.stream == stream && len(last.data)+len(data) <= mergedSize {
		// A reader may be sending what is there; what comes behind does not touch it.
		l.cost -= last.cost()
		last.data = append(last.data, data...)
		l.cost += last.cost()
	} else {
		// A buffer that is mostly empty is not worth keeping for what is in it.
		kept = len(data) >= cap(data)/2
		if !kept {
			data = append([]byte(nil), data...)
		}
		s := &segment{stream: stream, position: l.end, data: data}
		l.segments = append(l.segments, s)
		l.cost += s.cost()
	}
	l.end += uint64(len(data))
	l.total.used.Add(int64(l.cost) - int64(before))
	l.dropLocked()
	for ch := range l.readers {
		poke(ch.wake)
	}
	return kept
}

func (l *outlog) lastLocked() *segment {
	if len(l.segments) == 0 {
		return nil
	}
	return l.segments[len(l.segments)-1]
}

// dropLocked drops the oldest output until the rest is within the limit, or the
// holder still needs it.
func (l *outlog) dropLocked() {
	limit := l.allowedLocked()
	for len(l.segments) > 0 && l.cost > limit {
		if len(l.segments) == 1 && limit > 0 && l.exit == nil {
			return // one that is larger than the limit is better than none
		}
		s := l.segments[0]
		if l.holder != nil && s.end() > l.held {
			return
		}
		l.segments[0] = nil
		l.segments = l.segments[1:]
		l.start = s.end()
		l.cost -= s.cost()
		l.total.used.Add(-int64(s.cost()))
		s.dropped = true
		l.recycleLocked(s)
	}
}

func (l *outlog) recycleLocked(s *segment) {
	if s.dropped && s.readers == 0 && s.data != nil {
		l.free.put(s.data[:cap(s.data)])
		s.data = nil
	}
}

// wait waits until the log has room; the one who started the process holds it back
// so. A stream that drains does not wait.
func (l *outlog) wait(drain func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.fullLocked() && !drain() {
		if l.dropLocked(); l.fullLocked() {
			l.room.Wait()
		}
	}
}

// allowedLocked is what the log may cost now. Limits are given when processes start and
// end. What is left of a process writes on after that, and what a reader holds back is not
// dropped for others: each log has to see for itself that they are too much together.
func (l *outlog) allowedLocked() uint64 {
	switch {
	case !l.total.over():
		return l.limit
	case l.exit != nil:
		return min(l.limit, logLeft)
	}
	return min(l.limit, logMin)
}

func (l *outlog) fullLocked() bool { return l.cost > l.allowedLocked() && len(l.segments) > 1 }

// holdFrom makes ch the reader that loses nothing from a position on.
func (l *outlog) holdFrom(ch *channel, from uint64) {
	l.mu.Lock()
	l.holder, l.held = ch, from
	l.mu.Unlock()
}

// bounds returns the positions of the oldest byte that is kept and of the next one.
func (l *outlog) bounds() (start, end uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.start, l.end
}

// wakeAll lets everyone who waits look again.
func (l *outlog) wakeAll() {
	l.mu.Lock()
	l.room.Broadcast()
	for ch := range l.readers {
		poke(ch.wake)
	}
	l.mu.Unlock()
}

// finish records the end of the process.
func (l *outlog) finish(exit guestproto.ProcessExit) guestproto.ProcessExit {
	l.mu.Lock()
	exit.Position = l.end
	l.exit = &exit
	l.mu.Unlock()
	l.wakeAll()
	return exit
}

// setLimit changes how much is kept.
func (l *outlog) setLimit(n uint64) {
	l.mu.Lock()
	l.limit = n
	l.dropLocked()
	l.mu.Unlock()
}

// follow sends the output from a position on until the process has ended and all of it
// is sent, or with once what is there now, and returns the exit for this reader. started
// is called with the position at which the output begins.
func (l *outlog) follow(ch *channel, from uint64, once bool, started func(from uint64) error) (guestproto.ProcessExit, error) {
	l.mu.Lock()
	l.readers[ch] = struct{}{}
	if from == math.MaxUint64 {
		from = l.end
	}
	pos := max(from, l.start) // beyond the end: what is to come from there on
	lost := pos - from
	until := l.end
	l.mu.Unlock()
	defer l.unfollow(ch)
	if err := started(pos); err != nil {
		return guestproto.ProcessExit{}, err
	}
	for {
		want, err := ch.room(guestproto.MaxPayload)
		if err != nil {
			return guestproto.ProcessExit{}, err
		}
		l.mu.Lock()
		if pos < l.start {
			lost += l.start - pos
			pos = l.start
		}
		if l.exit != nil && (pos >= l.end || l.holder == ch && pos >= l.exit.Position) {
			exit := *l.exit
			exit.Lost = lost
			l.mu.Unlock()
			return exit, nil
		}
		if once && pos >= until {
			exit := guestproto.ProcessExit{Running: l.exit == nil, Position: until, Lost: lost}
			if l.exit != nil {
				exit = *l.exit
				exit.Lost = lost
			}
			l.mu.Unlock()
			return exit, nil
		}
		s := l.findLocked(pos)
		if s == nil || want == 0 {
			l.mu.Unlock()
			<-ch.wake
			continue
		}
		data := s.data[pos-s.position:]
		data = data[:min(len(data), want)]
		s.readers++
		l.mu.Unlock()

		err = ch.put(s.stream, pos, data)
		pos += uint64(len(data))

		l.mu.Lock()
		s.readers--
		l.recycleLocked(s)
		if l.holder == ch {
			l.held = pos
			l.room.Broadcast()
		}
		l.mu.Unlock()
		if err != nil {
			return guestproto.ProcessExit{}, err
		}
	}
}

func (l *outlog) unfollow(ch *channel) {
	l.mu.Lock()
	delete(l.readers, ch)
	if l.holder == ch {
		l.holder = nil
		l.dropLocked()
	}
	l.room.Broadcast()
	l.mu.Unlock()
}

// findLocked returns the segment that holds pos; nil at the end. Readers are mostly
// at the end or at the beginning, so it looks from both.
func (l *outlog) findLocked(pos uint64) *segment {
	if pos >= l.end {
		return nil
	}
	if last := l.lastLocked(); pos >= last.position {
		return last
	}
	low, high := 0, len(l.segments)-1
	for low < high {
		mid := (low + high) / 2
		if l.segments[mid].end() > pos {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return l.segments[low]
}
