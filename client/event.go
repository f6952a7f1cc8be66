package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"ringfence.dev/ringfence"
)

// EventOptions says which events to read.
type EventOptions struct {
	// After is the id of the last event that was seen; empty: from the oldest that the
	// server keeps; "now": only what comes.
	After string
	// Once ends after what there is. Without it the sequence goes on, across broken
	// connections and restarts of the server, which shows as an event of type gap.
	Once bool
}

type wireEvent struct {
	ID        string              `json:"id"`
	At        wireTime            `json:"at"`
	Type      ringfence.EventType `json:"type"`
	SandboxID string              `json:"sandbox_id"`
	Data      map[string]any      `json:"data"`
}

func (w wireEvent) event() ringfence.Event {
	return ringfence.Event{ID: w.ID, At: w.At.Time, Type: w.Type, SandboxID: w.SandboxID, Data: w.Data}
}

// Events goes through what happened to all sandboxes of the key's project, in order. An
// error ends the sequence, and so does the end of ctx.
func (c *Client) Events(ctx context.Context, o EventOptions) iter.Seq2[ringfence.Event, error] {
	return c.events(ctx, "/v1/events", o)
}

// Events goes through what happened to the sandbox, in order. See Client.Events.
func (s *Sandbox) Events(ctx context.Context, o EventOptions) iter.Seq2[ringfence.Event, error] {
	return s.c.events(ctx, s.path("/events"), o)
}

func (c *Client) events(ctx context.Context, path string, o EventOptions) iter.Seq2[ringfence.Event, error] {
	if o.Once {
		return c.eventPages(ctx, path, o)
	}
	return func(yield func(ringfence.Event, error) bool) {
		after := o.After
		r := newRetry()
		for {
			moved := false
			err := c.eventStream(ctx, path, after, func(id string, ev *ringfence.Event) bool {
				after, moved = id, true
				return ev == nil || yield(*ev, nil)
			})
			if errors.Is(err, errStopped) {
				return
			}
			if moved {
				r = newRetry()
			}
			if !r.again(ctx, err) {
				yield(ringfence.Event{}, err)
				return
			}
		}
	}
}

func (c *Client) eventPages(ctx context.Context, path string, o EventOptions) iter.Seq2[ringfence.Event, error] {
	return func(yield func(ringfence.Event, error) bool) {
		for after := o.After; ; {
			query := url.Values{}
			if after != "" {
				query.Set("after", after)
			}
			var page struct {
				Events []wireEvent `json:"events"`
				Next   string      `json:"next"`
			}
			if err := c.call(ctx, request{method: http.MethodGet, path: path, query: query, idempotent: true}, &page); err != nil {
				yield(ringfence.Event{}, err)
				return
			}
			for _, w := range page.Events {
				if !yield(w.event(), nil) {
					return
				}
			}
			if len(page.Events) == 0 {
				return
			}
			after = page.Next
		}
	}
}

// errStopped is the end of a sequence that its reader has left.
var errStopped = errors.New("the reader has enough")

// eventStream reads one stream until it breaks. each gets every id, with the event if
// there is one.
func (c *Client) eventStream(ctx context.Context, path, after string, each func(id string, ev *ringfence.Event) bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	query := url.Values{}
	if after != "" {
		query.Set("after", after)
	}
	r := request{method: http.MethodGet, path: path, query: query, accept: "text/event-stream", idempotent: true, what: "read events"}
	resp, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close() // what is left is of no use
	watch := time.AfterFunc(silenceLimit, func() { cancel(errSilent) })
	defer watch.Stop()
	lines := bufio.NewReaderSize(resp.Body, 64<<10)
	var id string
	var ev *ringfence.Event
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			if e := contextError(ctx, r); e != nil && !errors.Is(context.Cause(ctx), errSilent) {
				return e
			}
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return brokenStream(resp.Header.Get("X-Request-Id"), err)
		}
		watch.Reset(silenceLimit)
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch key {
		case "id":
			id = value
		case "data":
			var w wireEvent
			if err := json.Unmarshal([]byte(value), &w); err != nil {
				return c.brokenAnswer(ctx, r, resp, err)
			}
			e := w.event()
			ev = &e
		case "":
			if id != "" && !each(id, ev) {
				return errStopped
			}
			id, ev = "", nil
		}
	}
}

// Metrics is what a sandbox uses now, and used before.
type Metrics struct {
	Now     ringfence.Sample
	Samples []ringfence.Sample // each 5 s, the oldest first
}

type wireSample struct {
	At                   wireTime `json:"at"`
	CPUSeconds           float64  `json:"cpu_seconds"`
	CPUPercent           float64  `json:"cpu_percent"`
	MemoryBytes          int64    `json:"memory_bytes"`
	MemoryLimitBytes     int64    `json:"memory_limit_bytes"`
	DiskBytes            int64    `json:"disk_bytes"`
	DiskLimitBytes       int64    `json:"disk_limit_bytes"`
	NetworkReceivedBytes int64    `json:"network_received_bytes"`
	NetworkSentBytes     int64    `json:"network_sent_bytes"`
	NetworkDenied        int64    `json:"network_denied"`
	Processes            int      `json:"processes"`
}

func (w wireSample) sample() ringfence.Sample {
	return ringfence.Sample{At: w.At.Time, CPUSeconds: w.CPUSeconds, CPUPercent: w.CPUPercent, MemoryBytes: w.MemoryBytes, MemoryLimitBytes: w.MemoryLimitBytes,
		DiskBytes: w.DiskBytes, DiskLimitBytes: w.DiskLimitBytes, NetworkReceivedBytes: w.NetworkReceivedBytes, NetworkSentBytes: w.NetworkSentBytes, NetworkDenied: w.NetworkDenied, Processes: w.Processes}
}

// Metrics returns what the sandbox uses now, and the samples between two times; a zero
// time is no bound. The server keeps the last 24 hours in its memory.
func (s *Sandbox) Metrics(ctx context.Context, from, to time.Time) (Metrics, error) {
	query := url.Values{}
	for name, t := range map[string]time.Time{"from": from, "to": to} {
		if !t.IsZero() {
			query.Set(name, ringfence.FormatTime(t))
		}
	}
	var w struct {
		Now     wireSample   `json:"now"`
		Samples []wireSample `json:"samples"`
	}
	if err := s.c.call(ctx, request{method: http.MethodGet, path: s.path("/metrics"), query: query, idempotent: true}, &w); err != nil {
		return Metrics{}, err
	}
	m := Metrics{Now: w.Now.sample(), Samples: make([]ringfence.Sample, 0, len(w.Samples))}
	for _, one := range w.Samples {
		m.Samples = append(m.Samples, one.sample())
	}
	return m, nil
}
