package api

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/engine"
)

type eventWire struct {
	ID        string              `json:"id"`
	At        *string             `json:"at"`
	Type      ringfence.EventType `json:"type"`
	SandboxID *string             `json:"sandbox_id"`
	Data      map[string]any      `json:"data"`
}

func wireEvent(ev ringfence.Event) eventWire {
	data := make(map[string]any, len(ev.Data))
	for k, v := range ev.Data {
		if s, ok := v.(string); ok {
			v = strings.ToValidUTF8(s, "\uFFFD")
		}
		data[k] = v
	}
	return eventWire{ID: ev.ID, At: wireTime(ev.At), Type: ev.Type, SandboxID: null(ev.SandboxID), Data: data}
}

func (c *call) sandboxEvents() error {
	return c.events(engine.EventFilter{Project: c.who.Project, Sandbox: c.r.PathValue("id")})
}
func (c *call) projectEvents() error {
	return c.events(engine.EventFilter{Project: c.who.Project})
}

// events answers with a page, or with a stream that goes on until its reader leaves.
func (c *call) events(f engine.EventFilter) error {
	f.After = c.query.Get("after")
	if text := c.query.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 500 {
			return invalid("limit", "limit has to be from 1 to 500")
		}
		f.Limit = n
	}
	if accepted(c.r.Header.Values("Accept")) == typeEvents {
		if last := c.r.Header.Get("Last-Event-ID"); last != "" {
			f.After = last // a browser that connects again knows better than its URL
		}
		f.Limit = 0
		return c.streamEvents(f)
	}
	page, err := c.Engine.Events(c.r.Context(), f)
	if err != nil {
		return err
	}
	out := struct {
		Events []eventWire `json:"events"`
		Next   string      `json:"next"`
	}{[]eventWire{}, page.Next}
	for _, ev := range page.Events {
		out.Events = append(out.Events, wireEvent(ev))
	}
	return c.reply(200, out)
}

func (c *call) streamEvents(f engine.EventFilter) error {
	page, err := c.Engine.Events(c.r.Context(), f)
	if err != nil {
		return err
	}
	h := c.w.Header()
	h.Set("Content-Type", typeEvents)
	h.Set("X-Accel-Buffering", "no") // a proxy that gathered events would defeat them
	c.w.WriteHeader(http.StatusOK)
	quiet := time.NewTimer(c.KeepAlive)
	defer quiet.Stop()
	first := true
	for {
		var b strings.Builder
		for _, ev := range page.Events {
			raw, err := encode(wireEvent(ev))
			if err != nil {
				return err
			}
			b.WriteString("id: " + ev.ID + "\nevent: " + string(ev.Type) + "\ndata: ")
			b.Write(raw)
			b.WriteString("\n\n")
		}
		if first || b.Len() > 0 {
			// An id alone is no event, but a reader keeps it: after a restart of the server it
			// is told of the gap even if it has seen no event before.
			b.WriteString("id: " + page.Next + "\n\n")
			first = false
			if _, err := c.w.Write([]byte(b.String())); err != nil {
				return err
			}
			if err := c.w.control.Flush(); err != nil {
				return err
			}
			quiet.Reset(c.KeepAlive)
		}
		f.After = page.Next
		select {
		case <-page.More:
		case <-c.r.Context().Done():
			return nil
		case <-quiet.C:
			if _, err := c.w.Write([]byte(": keep-alive\n\n")); err != nil {
				return err
			}
			if err := c.w.control.Flush(); err != nil {
				return err
			}
			quiet.Reset(c.KeepAlive)
			continue
		}
		if page, err = c.Engine.Events(c.r.Context(), f); err != nil {
			return err
		}
	}
}
