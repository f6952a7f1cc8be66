package client

import (
	"context"
	"encoding/json"
	"iter"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"ringfence.dev/ringfence"
)

// span reads seconds; nil stays nil.
func span(seconds *float64) *time.Duration {
	if seconds == nil {
		return nil
	}
	d := time.Duration(math.Round(*seconds * float64(time.Second)))
	return &d
}

// Pause saves the sandbox's memory and written disk and takes it off the host. What runs
// in it goes on after Resume; whoever follows a command gets sandbox_paused and can join
// it again. Pausing one that is paused is no error.
//
// Errors: not_found, sandbox_ended, resource_exhausted (no room for what is saved); the
// sandbox runs on after any but sandbox_ended.
func (s *Sandbox) Pause(ctx context.Context) (Info, error) {
	return s.operate(ctx, "pause", nil, true)
}

// Resume brings a paused sandbox back as it was, with its id and token. One that runs is
// no error. Errors: not_found, sandbox_ended, resource_exhausted, failed_precondition
// (what was saved cannot be used on this host); it is still paused then.
func (s *Sandbox) Resume(ctx context.Context) (Info, error) {
	return s.operate(ctx, "resume", nil, true)
}

// Restore makes the sandbox what it was in a snapshot of the same template and size; what
// it was until now is lost. It keeps its id, token, name and environment.
func (s *Sandbox) Restore(ctx context.Context, snapshot string) (Info, error) {
	return s.operate(ctx, "restore", map[string]string{"snapshot": snapshot}, false)
}

func (s *Sandbox) operate(ctx context.Context, what string, body any, idempotent bool) (Info, error) {
	if body == nil {
		body = struct{}{}
	}
	var w wireSandbox
	r := request{method: http.MethodPost, path: "/v1/sandboxes/" + escape(s.id) + "/" + what, body: body, what: what + " a sandbox", idempotent: idempotent}
	if err := s.c.call(ctx, r, &w); err != nil {
		return Info{}, err
	}
	return w.handle(s.c).info, nil
}

// Fork makes copies of the sandbox, which goes on. They have its memory, files,
// environment, metadata and deadlines, and ids and tokens of their own. All or none are
// made.
func (s *Sandbox) Fork(ctx context.Context, count int) ([]*Sandbox, error) {
	var out struct {
		Sandboxes []wireSandbox `json:"sandboxes"`
	}
	r := request{method: http.MethodPost, path: "/v1/sandboxes/" + escape(s.id) + "/fork", body: map[string]int{"count": count}, what: "fork a sandbox"}
	if err := s.c.call(ctx, r, &out); err != nil {
		return nil, err
	}
	forks := make([]*Sandbox, len(out.Sandboxes))
	for i, w := range out.Sandboxes {
		forks[i] = w.handle(s.c)
	}
	return forks, nil
}

// Snapshot is a sandbox's memory and written disk at one instant. It outlives the
// sandbox, and any number of sandboxes can start from it: see CreateOptions.Snapshot.
type Snapshot struct {
	ID        string
	Name      string
	SandboxID string // whose it is
	Template  string
	VCPU      int
	MemoryMiB int64
	DiskMiB   int64
	Bytes     int64 // on the server's disk
	CreatedAt time.Time
}

type wireSnapshot struct {
	ID        string   `json:"id"`
	Name      string   `json:"name"`
	SandboxID string   `json:"sandbox_id"`
	Template  string   `json:"template"`
	VCPU      int      `json:"vcpu"`
	MemoryMiB int64    `json:"memory_mib"`
	DiskMiB   int64    `json:"disk_mib"`
	Bytes     int64    `json:"bytes"`
	CreatedAt wireTime `json:"created_at"`
}

func (w wireSnapshot) snapshot() Snapshot {
	return Snapshot{ID: w.ID, Name: w.Name, SandboxID: w.SandboxID, Template: w.Template, VCPU: w.VCPU, MemoryMiB: w.MemoryMiB,
		DiskMiB: w.DiskMiB, Bytes: w.Bytes, CreatedAt: w.CreatedAt.Time}
}

// Snapshot takes a snapshot; the sandbox goes on. A paused one is not woken.
func (s *Sandbox) Snapshot(ctx context.Context, name string) (Snapshot, error) {
	var w wireSnapshot
	r := request{method: http.MethodPost, path: "/v1/sandboxes/" + escape(s.id) + "/snapshots", body: map[string]string{"name": name}, what: "take a snapshot"}
	err := s.c.call(ctx, r, &w)
	return w.snapshot(), err
}

// GetSnapshot returns a snapshot by its id. Errors: not_found.
func (c *Client) GetSnapshot(ctx context.Context, id string) (Snapshot, error) {
	var w wireSnapshot
	err := c.call(ctx, request{method: http.MethodGet, path: "/v1/snapshots/" + escape(id), idempotent: true}, &w)
	return w.snapshot(), err
}

// DeleteSnapshot deletes a snapshot; sandboxes that started from it go on. Errors: not_found.
func (c *Client) DeleteSnapshot(ctx context.Context, id string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: "/v1/snapshots/" + escape(id)}, nil)
}

// Snapshots goes through snapshots, the newest first: those of a sandbox, or all when
// sandbox is empty. An error ends the sequence.
func (c *Client) Snapshots(ctx context.Context, sandbox string) iter.Seq2[Snapshot, error] {
	return func(yield func(Snapshot, error) bool) {
		query := url.Values{"limit": {strconv.Itoa(1000)}}
		if sandbox != "" {
			query.Set("sandbox_id", sandbox)
		}
		for {
			var page struct {
				Snapshots  []wireSnapshot `json:"snapshots"`
				NextCursor string         `json:"next_cursor"`
			}
			if err := c.call(ctx, request{method: http.MethodGet, path: "/v1/snapshots", query: query, idempotent: true}, &page); err != nil {
				yield(Snapshot{}, err)
				return
			}
			for _, w := range page.Snapshots {
				if !yield(w.snapshot(), nil) {
					return
				}
			}
			if page.NextCursor == "" {
				return
			}
			query.Set("cursor", page.NextCursor)
		}
	}
}

// DeadlinesChange says what to change of a sandbox; nil fields stay.
type DeadlinesChange struct {
	Timeout     *time.Duration // counts from now; 0: none
	OnTimeout   ringfence.OnTimeout
	IdleTimeout *time.Duration // 0: none
	AutoDelete  *time.Duration // negative: none; 0: at once
	AutoResume  *bool
	Metadata    map[string]string // replaces all that there is; nil: it stays
}

// GetAccessToken asks for a token of the sandbox, the same one each time; it is worth what
// the one is that came with the create.
func (s *Sandbox) GetAccessToken(ctx context.Context) (Secret, error) {
	var w struct {
		AccessToken Secret `json:"access_token"`
	}
	err := s.c.call(ctx, request{method: http.MethodPost, path: "/v1/sandboxes/" + escape(s.id) + "/token", idempotent: true}, &w)
	return w.AccessToken, err
}

// SetDeadlines changes what happens to the sandbox by itself, in whatever state it is.
func (s *Sandbox) SetDeadlines(ctx context.Context, c DeadlinesChange) (Info, error) {
	body := map[string]any{}
	put := func(name string, d *time.Duration, none bool) {
		switch {
		case d == nil:
		case none:
			body[name] = json.RawMessage("null")
		default:
			body[name] = d.Seconds()
		}
	}
	put("timeout_seconds", c.Timeout, c.Timeout != nil && *c.Timeout == 0)
	put("idle_timeout_seconds", c.IdleTimeout, c.IdleTimeout != nil && *c.IdleTimeout == 0)
	put("auto_delete_seconds", c.AutoDelete, c.AutoDelete != nil && *c.AutoDelete < 0)
	if c.OnTimeout != "" {
		body["on_timeout"] = c.OnTimeout
	}
	if c.AutoResume != nil {
		body["auto_resume"] = *c.AutoResume
	}
	if c.Metadata != nil {
		body["metadata"] = c.Metadata
	}
	var w wireSandbox
	r := request{method: http.MethodPatch, path: "/v1/sandboxes/" + escape(s.id), body: body, what: "change a sandbox", idempotent: true}
	if err := s.c.call(ctx, r, &w); err != nil {
		return Info{}, err
	}
	return w.handle(s.c).info, nil
}
