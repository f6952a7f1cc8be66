package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"strings"
	"sync"

	"ringfence.dev/ringfence"
)

// Bounds of what is kept of a project's events.
const (
	maxEvents     = 10_000
	maxEventBytes = 8 << 20 // counted roughly
	eventPage     = 500
)

// events is what happened since this process started, by project.
type events struct {
	epoch     string
	restarted bool // another process came before this one

	mu       sync.Mutex
	projects map[string]*eventLog // guarded by mu
}

// eventLog holds the last events of a project, numbered without gaps.
type eventLog struct {
	first uint64 // number of kept[0]
	kept  []keptEvent
	bytes int
	more  chan struct{} // closed when there is a next one
}

type keptEvent struct {
	ringfence.Event
	size int
}

func (ev *events) init() {
	var random [6]byte
	rand.Read(random[:]) // never fails since Go 1.24
	ev.epoch = hex.EncodeToString(random[:])
	ev.projects = map[string]*eventLog{}
}

func (ev *events) log(project string) *eventLog {
	l := ev.projects[project]
	if l == nil {
		l = &eventLog{first: 1, more: make(chan struct{})}
		ev.projects[project] = l
	}
	return l
}

// emit puts an event of the sandbox on record. data belongs to it from then on. It never
// blocks, and may be called with any lock of the engine held.
func (b *box) emit(t ringfence.EventType, data map[string]any) {
	b.e.emit(b.project, b.id, t, data)
}

func (e *Engine) emit(project, sandbox string, t ringfence.EventType, data map[string]any) {
	size := 128
	for k, v := range data {
		size += len(k) + 32
		if s, ok := v.(string); ok {
			size += len(s)
		}
	}
	ev := &e.events
	ev.mu.Lock()
	defer ev.mu.Unlock()
	l := ev.log(project)
	l.kept = append(l.kept, keptEvent{ringfence.Event{At: now(), Type: t, SandboxID: sandbox, Data: data}, size})
	l.bytes += size
	drop := 0
	for len(l.kept)-drop > maxEvents || l.bytes > maxEventBytes {
		l.bytes -= l.kept[drop].size
		l.kept[drop] = keptEvent{}
		drop++
	}
	l.kept, l.first = l.kept[drop:], l.first+uint64(drop)
	close(l.more)
	l.more = make(chan struct{})
}

// cut bounds a text that goes into an event.
func cut(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "") + "…"
	}
	return s
}

// EventFilter selects events of one project.
type EventFilter struct {
	Project string
	Sandbox string // empty: all of the project
	// After is the id of the last event that the caller has seen; empty: from the oldest
	// that is kept; "now": only what comes.
	After string
	// Limit is how many are returned at most, 1 to 500; 0: 500.
	Limit int
}

// EventPage is some events, and where the next ones are.
type EventPage struct {
	Events []ringfence.Event
	Next   string // to be given as After
	// More is closed when there may be more after Next. It is closed already when there are.
	More <-chan struct{}
}

// Events returns what happened after an event, in order. Where events are missing
// between that one and the first that is kept, a gap stands in their place. Errors:
// not_found (the sandbox), invalid_argument (After).
func (e *Engine) Events(ctx context.Context, f EventFilter) (EventPage, error) {
	var sandboxIsOld bool
	if f.Sandbox != "" {
		sb, err := e.Get(ctx, f.Project, f.Sandbox)
		if err != nil {
			return EventPage{}, err
		}
		sandboxIsOld = sb.CreatedAt.Before(e.opened)
	}
	if f.Limit <= 0 || f.Limit > eventPage {
		f.Limit = eventPage
	}
	after, epoch, err := parseEventID(f.After)
	if err != nil {
		return EventPage{}, err
	}
	ev := &e.events
	ev.mu.Lock()
	defer ev.mu.Unlock()
	l := ev.log(f.Project)
	end := l.first + uint64(len(l.kept)) // number of the next one
	gap := ""
	switch {
	case f.After == "now":
		after = end - 1
	case f.After == "":
		if l.first > 1 {
			gap = ringfence.GapOverflow
		}
		if f.Sandbox == "" && ev.restarted || sandboxIsOld {
			gap = ringfence.GapDaemonRestarted
		}
		after = l.first - 1
	case epoch != ev.epoch || after >= end:
		gap, after = ringfence.GapDaemonRestarted, l.first-1
	case after+1 < l.first:
		gap, after = ringfence.GapOverflow, l.first-1
	}
	var page EventPage
	id := func(n uint64) string { return ev.epoch + "-" + strconv.FormatUint(n, 10) }
	if gap != "" {
		page.Events = append(page.Events, ringfence.Event{
			ID: id(after), At: now(), Type: ringfence.EventGap, SandboxID: f.Sandbox, Data: map[string]any{"reason": gap},
		})
	}
	n := after + 1
	for ; n < end && len(page.Events) < f.Limit; n++ {
		kept := l.kept[n-l.first].Event
		if f.Sandbox == "" || kept.SandboxID == f.Sandbox {
			kept.ID = id(n)
			page.Events = append(page.Events, kept)
		}
	}
	page.Next, page.More = id(n-1), l.more
	if n < end {
		page.More = closedChannel
	}
	return page, nil
}

var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// parseEventID reads <epoch>-<n>.
func parseEventID(id string) (n uint64, epoch string, err error) {
	if id == "" || id == "now" {
		return 0, "", nil
	}
	epoch, digits, ok := strings.Cut(id, "-")
	if ok && len(id) <= 64 && epoch != "" {
		if n, err = strconv.ParseUint(digits, 10, 63); err == nil {
			return n, epoch, nil
		}
	}
	return 0, "", invalid("after", "%s is not the id of an event", quoteShort(id)).
		WithHint("give the id of the last event that was seen, or now")
}
