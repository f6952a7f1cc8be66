package client

import (
	"context"
	"encoding/json"
	"iter"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"ringfence.dev/ringfence"
)

// CreateOptions says what sandbox to make. The zero value is a sandbox of the
// default template and size, without a life limit and with the public internet.
type CreateOptions struct {
	Name      string // shown in lists; need not be unique
	Template  string // "code-interpreter" when empty
	VCPU      int    // cores; 0: the template's
	MemoryMiB int64  // 0: the template's
	DiskMiB   int64  // 0: the template's
	// Env is given to every command of the sandbox, under the command's own.
	Env map[string]string
	// Metadata is the caller's own; sandboxes can be listed by it.
	Metadata map[string]string
	User     string // who runs commands unless a command says otherwise; the template's when empty
	// Timeout is how long the sandbox runs, from its creation and from each resume; then
	// OnTimeout happens. 0: for ever.
	Timeout time.Duration
	// OnTimeout is what happens after Timeout and IdleTimeout; kill when empty.
	OnTimeout ringfence.OnTimeout
	// IdleTimeout does the same after so long without a command, file call or port
	// traffic; what is under way counts. 0: never.
	IdleTimeout time.Duration
	// AutoDelete deletes the sandbox so long after it was paused; 0: at once. nil: never.
	AutoDelete *time.Duration
	// NoAutoResume makes a call on the paused sandbox fail (sandbox_paused) instead of
	// waking it.
	NoAutoResume bool
	// Snapshot is the id of a snapshot to start from, instead of a template.
	Snapshot string
	// IdempotencyKey names the call, in at most 255 printable characters of ASCII. Another
	// create of the same name and options makes nothing and returns the sandbox of the
	// first one; so Create sends it again when the connection breaks.
	IdempotencyKey string
	// Network says what may leave the sandbox; nil: what goes to the public internet.
	Network *ringfence.NetworkPolicy
}

// Info describes a sandbox as it was when the server answered.
type Info struct {
	ID        string // 20 of [a-z0-9]
	Name      string
	Template  string // canonical name
	State     ringfence.State
	Reason    ringfence.Reason // why it ended; empty while it lives
	Detail    string           // one sentence about the end
	VCPU      int
	MemoryMiB int64
	DiskMiB   int64
	Metadata  map[string]string
	User      string // who runs commands unless a command says otherwise
	WorkDir   string // where commands start unless a command says otherwise
	Network   ringfence.NetworkPolicy
	CreatedAt time.Time
	StartedAt time.Time // zero until it runs
	EndedAt   time.Time // zero until it ended
	ExpiresAt time.Time // when the running period ends; zero: no life limit, or paused
	PausedAt  time.Time // zero unless it is paused
	IdleAt    time.Time // when it will have been idle for too long; zero: never
	DeleteAt  time.Time // when it is deleted, being paused; zero: never
	Deadlines ringfence.Deadlines
}

// Secret is a credential. It prints as "[secret]"; string(s) is the credential itself.
type Secret string

// String hides the secret from logs.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "[secret]"
}

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return s.String() }

// LogValue hides the secret from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Sandbox is a handle on one sandbox. It may be used by several goroutines at once.
type Sandbox struct {
	c     *Client
	id    string
	token Secret
	info  Info
}

// ID returns the sandbox's id.
func (s *Sandbox) ID() string { return s.id }

// Info returns what the server said when this handle was made; only the id is set
// in a handle that Open made. Refresh asks again.
func (s *Sandbox) Info() Info { return s.info }

// AccessToken returns the token that opens this sandbox's commands and files and
// nothing else. Only the handle that Create returned has it; it is empty otherwise.
func (s *Sandbox) AccessToken() Secret { return s.token }

// Refresh asks the server for the sandbox's present state.
func (s *Sandbox) Refresh(ctx context.Context) (Info, error) {
	fresh, err := s.c.Get(ctx, s.id)
	if err != nil {
		return Info{}, err
	}
	return fresh.info, nil
}

// Kill ends the sandbox and removes all that it had. Killing one that has ended is
// no error.
func (s *Sandbox) Kill(ctx context.Context) error { return s.c.Kill(ctx, s.id) }

// Files returns the sandbox's files.
func (s *Sandbox) Files() Files { return Files{s: s} }

// Create makes a sandbox and waits until it runs. Without an IdempotencyKey it is never
// sent twice: when the connection breaks (unavailable), a sandbox may exist that List finds.
//
// Errors: template_not_found, invalid_argument, not_yet_supported (a policy that
// opens the network), resource_exhausted (the host is full; see RetryAfterSeconds).
func (c *Client) Create(ctx context.Context, o CreateOptions) (*Sandbox, error) {
	body := wireCreate{
		Name: o.Name, Template: o.Template, VCPU: o.VCPU, MemoryMiB: o.MemoryMiB, DiskMiB: o.DiskMiB,
		Env: o.Env, Metadata: o.Metadata, User: o.User,
	}
	if o.Timeout != 0 {
		seconds := o.Timeout.Seconds()
		body.TimeoutSeconds = &seconds
	}
	body.OnTimeout, body.Snapshot = o.OnTimeout, o.Snapshot
	if o.IdleTimeout != 0 {
		seconds := o.IdleTimeout.Seconds()
		body.IdleTimeoutSeconds = &seconds
	}
	if o.AutoDelete != nil {
		seconds := o.AutoDelete.Seconds()
		body.AutoDeleteSeconds = &seconds
	}
	if o.NoAutoResume {
		no := false
		body.AutoResume = &no
	}
	if n := o.Network; n != nil {
		body.Network = &wireNetwork{AllowOut: n.AllowOut, DenyOut: n.DenyOut, AllowInternetAccess: n.AllowInternetAccess, ClosedPorts: n.ClosedPorts}
	}
	var w wireSandbox
	r := request{method: http.MethodPost, path: "/v1/sandboxes", body: body, what: "create a sandbox"}
	if key := o.IdempotencyKey; key != "" {
		if strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' }) {
			return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "the idempotency key has to be printable characters of ASCII").WithField("Idempotency-Key")
		}
		r.header, r.idempotent = http.Header{"Idempotency-Key": {key}}, true
	}
	if err := c.call(ctx, r, &w); err != nil {
		return nil, err
	}
	return w.handle(c), nil
}

// Get returns a sandbox by its id, ended ones included. Errors: not_found.
func (c *Client) Get(ctx context.Context, id string) (*Sandbox, error) {
	var w wireSandbox
	if err := c.call(ctx, request{method: http.MethodGet, path: "/v1/sandboxes/" + escape(id), idempotent: true}, &w); err != nil {
		return nil, err
	}
	return w.handle(c), nil
}

// Open returns a handle on a sandbox without asking the server about it.
func (c *Client) Open(id string) *Sandbox { return &Sandbox{c: c, id: id, info: Info{ID: id}} }

// Kill ends a sandbox by its id. Killing one that has ended is no error. Errors: not_found.
func (c *Client) Kill(ctx context.Context, id string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: "/v1/sandboxes/" + escape(id), idempotent: true}, nil)
}

// ListOptions says which sandboxes to list.
type ListOptions struct {
	// Metadata lists the sandboxes that have all of these entries.
	Metadata map[string]string
	// States lists those in one of these states; those that have not ended when empty.
	States []ringfence.State
	// PageSize is how many the server sends at a time: 1 to 1000, 100 when 0.
	PageSize int
}

// List goes through sandboxes, the newest first. Pages are asked for as they are
// needed; an error ends the sequence.
func (c *Client) List(ctx context.Context, o ListOptions) iter.Seq2[*Sandbox, error] {
	return func(yield func(*Sandbox, error) bool) {
		query := url.Values{}
		for k, v := range o.Metadata {
			query.Set("metadata."+k, v)
		}
		if len(o.States) > 0 {
			names := make([]string, len(o.States))
			for i, s := range o.States {
				names[i] = string(s)
			}
			query.Set("state", strings.Join(names, ","))
		}
		if o.PageSize != 0 {
			query.Set("limit", strconv.Itoa(o.PageSize))
		}
		for {
			var page struct {
				Sandboxes  []wireSandbox `json:"sandboxes"`
				NextCursor string        `json:"next_cursor"`
			}
			if err := c.call(ctx, request{method: http.MethodGet, path: "/v1/sandboxes", query: query, idempotent: true}, &page); err != nil {
				yield(nil, err)
				return
			}
			for _, w := range page.Sandboxes {
				if !yield(w.handle(c), nil) {
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

type wireCreate struct {
	Name           string            `json:"name,omitempty"`
	Template       string            `json:"template,omitempty"`
	VCPU           int               `json:"vcpu,omitempty"`
	MemoryMiB      int64             `json:"memory_mib,omitempty"`
	DiskMiB        int64             `json:"disk_mib,omitempty"`
	Env            map[string]string `json:"env,omitempty"`
	Metadata       map[string]string `json:"metadata,omitempty"`
	User           string            `json:"user,omitempty"`
	TimeoutSeconds *float64          `json:"timeout_seconds,omitempty"`
	Network        *wireNetwork      `json:"network,omitempty"`
	Snapshot       string            `json:"snapshot,omitempty"`

	OnTimeout          ringfence.OnTimeout `json:"on_timeout,omitempty"`
	IdleTimeoutSeconds *float64            `json:"idle_timeout_seconds,omitempty"`
	AutoDeleteSeconds  *float64            `json:"auto_delete_seconds,omitempty"`
	AutoResume         *bool               `json:"auto_resume,omitempty"`
}

type wireNetwork struct {
	AllowOut            []string `json:"allow_out,omitempty"`
	DenyOut             []string `json:"deny_out,omitempty"`
	AllowInternetAccess *bool    `json:"allow_internet_access,omitempty"`
	ClosedPorts         bool     `json:"closed_ports,omitempty"`
}

type wireSandbox struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Template  string            `json:"template"`
	State     ringfence.State   `json:"state"`
	Reason    ringfence.Reason  `json:"reason"`
	Detail    string            `json:"detail"`
	VCPU      int               `json:"vcpu"`
	MemoryMiB int64             `json:"memory_mib"`
	DiskMiB   int64             `json:"disk_mib"`
	Metadata  map[string]string `json:"metadata"`
	User      string            `json:"user"`
	WorkDir   string            `json:"work_dir"`
	Network   wireNetwork       `json:"network"`
	CreatedAt wireTime          `json:"created_at"`
	StartedAt wireTime          `json:"started_at"`
	EndedAt   wireTime          `json:"ended_at"`
	ExpiresAt wireTime          `json:"expires_at"`
	PausedAt  wireTime          `json:"paused_at"`
	IdleAt    wireTime          `json:"idle_at"`
	DeleteAt  wireTime          `json:"delete_at"`

	TimeoutSeconds     *float64            `json:"timeout_seconds"`
	OnTimeout          ringfence.OnTimeout `json:"on_timeout"`
	IdleTimeoutSeconds *float64            `json:"idle_timeout_seconds"`
	AutoDeleteSeconds  *float64            `json:"auto_delete_seconds"`
	AutoResume         bool                `json:"auto_resume"`

	AccessToken Secret `json:"access_token"`
}

func (w wireSandbox) handle(c *Client) *Sandbox {
	info := Info{
		ID: w.ID, Name: w.Name, Template: w.Template, State: w.State, Reason: w.Reason, Detail: w.Detail,
		VCPU: w.VCPU, MemoryMiB: w.MemoryMiB, DiskMiB: w.DiskMiB, Metadata: w.Metadata, User: w.User, WorkDir: w.WorkDir,
		Network:   ringfence.NetworkPolicy{AllowOut: w.Network.AllowOut, DenyOut: w.Network.DenyOut, AllowInternetAccess: w.Network.AllowInternetAccess, ClosedPorts: w.Network.ClosedPorts},
		CreatedAt: w.CreatedAt.Time, StartedAt: w.StartedAt.Time, EndedAt: w.EndedAt.Time, ExpiresAt: w.ExpiresAt.Time,
		PausedAt: w.PausedAt.Time, IdleAt: w.IdleAt.Time, DeleteAt: w.DeleteAt.Time,
		Deadlines: ringfence.Deadlines{OnTimeout: w.OnTimeout, AutoDelete: span(w.AutoDeleteSeconds), NoAutoResume: !w.AutoResume},
	}
	if d := span(w.TimeoutSeconds); d != nil {
		info.Deadlines.Timeout = *d
	}
	if d := span(w.IdleTimeoutSeconds); d != nil {
		info.Deadlines.IdleTimeout = *d
	}
	return &Sandbox{c: c, id: w.ID, token: w.AccessToken, info: info}
}

// wireTime reads an RFC 3339 time; null and "" are the zero time.
type wireTime struct{ time.Time }

// UnmarshalJSON implements json.Unmarshaler.
func (t *wireTime) UnmarshalJSON(b []byte) error {
	var s *string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	if s == nil || *s == "" {
		t.Time = time.Time{}
		return nil
	}
	var err error
	t.Time, err = time.Parse(time.RFC3339Nano, *s)
	return err
}
