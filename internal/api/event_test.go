package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
)

// eventStream reads server-sent events.
type eventStream struct {
	t     testing.TB
	lines *bufio.Scanner
	id    string
}

func (w *world) eventStream(path string, headers ...string) *eventStream {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	w.t.Cleanup(cancel)
	resp, err := w.open(ctx, "GET", path, nil, append([]string{"Accept", "text/event-stream"}, headers...)...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		w.t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	return &eventStream{t: w.t, lines: bufio.NewScanner(resp.Body)}
}

// next returns the next event, "id" for an id alone, "" for a comment.
func (s *eventStream) next() (name string, ev map[string]any) {
	s.t.Helper()
	only := false
	for s.lines.Scan() {
		key, value, _ := strings.Cut(s.lines.Text(), ": ")
		switch {
		case key == "id":
			s.id, only = value, true
		case key == "event":
			name = value
		case key == "data":
			if err := json.Unmarshal([]byte(value), &ev); err != nil {
				s.t.Fatal(err)
			}
		case s.lines.Text() == "" && name != "":
			if ev["type"] != name || ev["id"] != s.id {
				s.t.Errorf("the event %s %s holds %v", name, s.id, ev)
			}
			return name, ev
		case s.lines.Text() == "" && only:
			return "id", nil
		}
	}
	s.t.Fatalf("the stream ended: %v", s.lines.Err())
	return "", nil
}

// until collects the names of events up to one.
func (s *eventStream) until(last string) string {
	s.t.Helper()
	var names []string
	for {
		name, _ := s.next()
		if name != "id" {
			names = append(names, name)
		}
		if name == last {
			return strings.Join(names, " ")
		}
	}
}

func TestEventStream(t *testing.T) {
	w := newWorld(t)
	project := w.eventStream("/v1/events")
	if name, _ := project.next(); name != "id" { // and with it a place to resume at, before there is any event
		t.Errorf("it begins with %s", name)
	}
	start := project.id
	id := w.createID()
	other := w.createID()
	if got := project.until("started"); got != "created started" {
		t.Errorf("the project has %s", got)
	}
	one := w.eventStream("/v1/sandboxes/"+id+"/events", "Last-Event-ID", start)
	if got := one.until("started"); got != "created started" {
		t.Errorf("the sandbox has %s", got)
	}
	resume := one.id
	w.send("DELETE", "/v1/sandboxes/"+other, "")
	w.send("PUT", "/v1/sandboxes/"+id+"/ports/80", `{"public":true}`)
	w.send("DELETE", "/v1/sandboxes/"+id, "")
	if got := one.until("ended"); got != "port_published ended" {
		t.Errorf("the sandbox has %s", got)
	}
	again := w.eventStream("/v1/sandboxes/"+id+"/events?after=now", "Last-Event-ID", resume)
	if name, ev := again.next(); name != "port_published" || ev["sandbox_id"] != id || ev["data"].(map[string]any)["port"] != 80.0 {
		t.Errorf("it resumes with %s %v", name, ev)
	}
	// An id of another process of the server: a gap, and then all that is kept.
	gap := w.eventStream("/v1/events", "Last-Event-ID", "0123456789ab-7")
	if name, ev := gap.next(); name != "gap" || ev["data"].(map[string]any)["reason"] != ringfence.GapDaemonRestarted || ev["sandbox_id"] != nil {
		t.Errorf("it begins with %s %v", name, ev)
	}
	if got := gap.until("ended"); !strings.HasPrefix(got, "created started created started") {
		t.Errorf("and goes on with %s", got)
	}
	r := w.send("GET", "/v1/events?limit=3&after="+start, "")
	page := r.json(t)
	if events := page["events"].([]any); len(events) != 3 || page["next"] != events[2].(map[string]any)["id"] {
		t.Errorf("%s", r.body)
	}
	w.refused(w.send("GET", "/v1/events?after=x", "", "Accept", "text/event-stream"), 400, ringfence.CodeInvalidArgument, "after")
	w.refused(w.send("GET", "/v1/events", "", "Authorization", "-"), 401, ringfence.CodeUnauthenticated, "")
	if r := w.send("GET", "/v1/sandboxes/"+ringfence.NewSandboxID()+"/events", ""); r.StatusCode != 404 {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
}
