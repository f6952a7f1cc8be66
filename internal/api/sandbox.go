package api

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"ringfence.dev/ringfence"
	spec "ringfence.dev/ringfence/api"
	"ringfence.dev/ringfence/internal/engine"
)

func (c *call) health() error {
	return c.reply(http.StatusOK, map[string]string{"status": "ok", "version": c.Version})
}

func (c *call) openAPI() error {
	c.w.Header().Set("Content-Type", "application/yaml")
	c.w.Header().Set("Content-Length", strconv.Itoa(len(spec.OpenAPI)))
	_, err := c.w.Write(spec.OpenAPI)
	return err
}

type networkBody struct {
	AllowOut            []string `json:"allow_out"`
	DenyOut             []string `json:"deny_out"`
	AllowInternetAccess *bool    `json:"allow_internet_access"`
	ClosedPorts         bool     `json:"closed_ports,omitempty"`
}

type createBody struct {
	Name      string            `json:"name"`
	Template  string            `json:"template"`
	VCPU      *int              `json:"vcpu"`
	MemoryMiB *int64            `json:"memory_mib"`
	DiskMiB   *int64            `json:"disk_mib"`
	Env       map[string]string `json:"env"`
	Metadata  map[string]string `json:"metadata"`
	User      string            `json:"user"`
	Network   networkBody       `json:"network"`
	Snapshot  string            `json:"snapshot"`
	deadlinesBody
	FixedTimeout bool `json:"fixed_timeout"`
}

type sandboxBody struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Template  string            `json:"template"`
	State     ringfence.State   `json:"state"`
	Reason    *ringfence.Reason `json:"reason"`
	Detail    *string           `json:"detail"`
	VCPU      int               `json:"vcpu"`
	MemoryMiB int64             `json:"memory_mib"`
	DiskMiB   int64             `json:"disk_mib"`
	Metadata  map[string]string `json:"metadata"`
	User      string            `json:"user"`
	WorkDir   string            `json:"work_dir"`
	Network   networkBody       `json:"network"`
	CreatedAt *string           `json:"created_at"`
	StartedAt *string           `json:"started_at"`
	EndedAt   *string           `json:"ended_at"`
	ExpiresAt *string           `json:"expires_at"`
	PausedAt  *string           `json:"paused_at"`
	IdleAt    *string           `json:"idle_at"`
	DeleteAt  *string           `json:"delete_at"`

	TimeoutSeconds     *float64            `json:"timeout_seconds"`
	OnTimeout          ringfence.OnTimeout `json:"on_timeout"`
	IdleTimeoutSeconds *float64            `json:"idle_timeout_seconds"`
	AutoDeleteSeconds  *float64            `json:"auto_delete_seconds"`
	AutoResume         bool                `json:"auto_resume"`
	FixedTimeout       bool                `json:"fixed_timeout,omitempty"`

	AccessToken string `json:"access_token,omitempty"`
}

// null spells a value whose zero means none.
func null[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func wireTime(t time.Time) *string { return null(ringfence.FormatTime(t)) }

func list(items []string) []string { return append([]string{}, items...) }

func (c *call) sandboxWire(sb *ringfence.Sandbox) sandboxBody {
	metadata := sb.Metadata
	if metadata == nil {
		metadata = map[string]string{}
	}
	at, d := c.Engine.Instants(sb), sb.Deadlines
	if d.OnTimeout == "" {
		d.OnTimeout = ringfence.OnTimeoutKill
	}
	body := sandboxBody{
		ID: sb.ID, Name: sb.Name, Template: sb.Template, State: sb.State, Reason: null(sb.Reason), Detail: null(sb.Detail),
		VCPU: sb.Size.VCPU, MemoryMiB: sb.Size.MemoryMiB, DiskMiB: sb.Size.DiskMiB, Metadata: metadata, User: sb.User, WorkDir: sb.WorkDir,
		Network:   networkWire(sb.Network),
		CreatedAt: wireTime(sb.CreatedAt), StartedAt: wireTime(sb.StartedAt), EndedAt: wireTime(sb.EndedAt), ExpiresAt: wireTime(at.ExpiresAt),
		PausedAt: wireTime(sb.PausedAt), IdleAt: wireTime(at.IdleAt), DeleteAt: wireTime(at.DeleteAt),
		TimeoutSeconds: null(d.Timeout.Seconds()), OnTimeout: d.OnTimeout, IdleTimeoutSeconds: null(d.IdleTimeout.Seconds()), AutoResume: !d.NoAutoResume, FixedTimeout: d.FixedTimeout,
	}
	if d.AutoDelete != nil {
		after := d.AutoDelete.Seconds()
		body.AutoDeleteSeconds = &after
	}
	return body
}

// seconds reads a number of seconds. Absent: def; null: 0, which is none.
func seconds(field string, raw json.RawMessage, def time.Duration) (time.Duration, error) {
	switch {
	case len(raw) == 0:
		return def, nil
	case string(raw) == "null":
		return 0, nil
	}
	var n float64
	if err := json.Unmarshal(raw, &n); err != nil {
		return 0, invalid(field, "%s has to be a number of seconds, or null for none", field)
	}
	if !(n > 0) || n > ringfence.MaxTimeoutSeconds { // NaN is refused too
		return 0, invalid(field, "%s has to be above 0 and at most %d", field, ringfence.MaxTimeoutSeconds).WithHint("null means none")
	}
	return max(time.Duration(math.Round(n*float64(time.Second))), time.Microsecond), nil
}

func (c *call) createSandbox() error {
	var in createBody
	if err := c.decode(&in); err != nil {
		return err
	}
	deadlines, err := in.deadlines()
	if err != nil {
		return err
	}
	deadlines.FixedTimeout = in.FixedTimeout
	size, err := in.size()
	if err != nil {
		return err
	}
	secret, _ := ringfence.NormalizeAPIKey(credential(c.r)) // it was let in with it
	sb, token, err := c.Engine.Create(c.r.Context(), engine.CreateRequest{
		Project: c.who.Project, Name: in.Name, Template: in.Template, Size: size, Env: in.Env, Metadata: in.Metadata, User: in.User,
		Deadlines: deadlines, Snapshot: in.Snapshot,
		IdempotencyKey: c.r.Header.Get("Idempotency-Key"), Secret: secret, Network: ringfence.NetworkPolicy(in.Network),
	})
	if err != nil {
		return err
	}
	c.w.sandbox = sb.ID
	out := c.sandboxWire(sb)
	out.AccessToken = token
	c.w.Header().Set("Location", "/v1/sandboxes/"+sb.ID)
	return c.reply(http.StatusCreated, out)
}

// size refuses a 0, which the engine would take for the template's size.
func (b *createBody) size() (size ringfence.Size, err error) {
	zero := func(field string) error {
		return invalid(field, "%s has to be above 0", field).WithHint("leave it out for the template's")
	}
	if b.VCPU != nil {
		if size.VCPU = *b.VCPU; size.VCPU <= 0 {
			return size, zero("vcpu")
		}
	}
	if b.MemoryMiB != nil {
		if size.MemoryMiB = *b.MemoryMiB; size.MemoryMiB <= 0 {
			return size, zero("memory_mib")
		}
	}
	if b.DiskMiB != nil {
		if size.DiskMiB = *b.DiskMiB; size.DiskMiB <= 0 {
			return size, zero("disk_mib")
		}
	}
	return size, nil
}

func (c *call) getSandbox() error {
	sb, err := c.Engine.Get(c.r.Context(), c.who.Project, c.r.PathValue("id"))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, c.sandboxWire(sb))
}

func (c *call) deleteSandbox() error {
	if err := c.Engine.Kill(c.r.Context(), c.who.Project, c.r.PathValue("id")); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

const (
	defaultPage = 100
	maxPage     = 1000
)

func (c *call) listSandboxes() error {
	f := ringfence.SandboxFilter{Project: c.who.Project, Limit: defaultPage, Metadata: map[string]string{}}
	for name, values := range c.query {
		if key, ok := strings.CutPrefix(name, "metadata."); ok {
			f.Metadata[key] = values[0]
		}
	}
	if len(f.Metadata) > ringfence.MaxMetadataItems {
		return invalid("metadata", "at most %d metadata filters fit", ringfence.MaxMetadataItems)
	}
	if states := c.query.Get("state"); states != "" {
		for name := range strings.SplitSeq(states, ",") {
			state := ringfence.State(name)
			if !state.Valid() {
				return invalid("state", "there is no state %q", short(name)).
					WithHint("the states are starting, running, pausing, paused, resuming, failed, deleted")
			}
			if !slices.Contains(f.States, state) {
				f.States = append(f.States, state)
			}
		}
	}
	limit, err := c.number("limit", defaultPage, 1, maxPage)
	if err != nil {
		return err
	}
	f.Limit = limit + 1 // one more says whether there is another page
	if cursor := c.query.Get("cursor"); cursor != "" {
		if f.Before, err = parseCursor(cursor, ringfence.ValidSandboxID); err != nil {
			return err
		}
	}
	found, err := c.Engine.List(c.r.Context(), f)
	if err != nil {
		return err
	}
	out := struct {
		Sandboxes  []sandboxBody `json:"sandboxes"`
		NextCursor *string       `json:"next_cursor"`
	}{Sandboxes: []sandboxBody{}}
	if len(found) > limit {
		found = found[:limit]
		out.NextCursor = null(formatCursor(found[limit-1].CreatedAt, found[limit-1].ID))
	}
	for _, sb := range found {
		out.Sandboxes = append(out.Sandboxes, c.sandboxWire(sb))
	}
	return c.reply(http.StatusOK, out)
}

// number reads a query parameter that is a whole number.
func (c *call) number(name string, def, least, most int) (int, error) {
	text := c.query.Get(name)
	if text == "" {
		return def, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, invalid(name, "%s has to be a whole number from %d to %d", name, least, most)
	}
	return n, nil
}

// A cursor is opaque to clients: the creation time and id of the last of a page.
func formatCursor(created time.Time, id string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(created.UnixMicro(), 10) + "." + id))
}

func parseCursor(s string, valid func(id string) bool) (*ringfence.SandboxCursor, error) {
	if raw, err := base64.RawURLEncoding.DecodeString(s); err == nil {
		at, id, _ := strings.Cut(string(raw), ".")
		if n, err := strconv.ParseInt(at, 10, 64); err == nil && valid(id) {
			return &ringfence.SandboxCursor{CreatedAt: time.UnixMicro(n), ID: id}, nil
		}
	}
	return nil, invalid("cursor", "cursor is not one that this server gave out").WithHint("pass next_cursor of the page before, unchanged")
}
