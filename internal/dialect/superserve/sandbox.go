package superserve

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/dialect"
	"ringfence.dev/ringfence/internal/engine"
)

// Bounds of the original, which its users may count on.
const (
	maxName       = 64
	maxTimeout    = 7 * 24 * 3600
	maxAutoDelete = 30 * 24 * 3600
)

// home is where commands start, and what they take for the home of root too.
const home = "/home/user"

type networkBody struct {
	AllowOut []string `json:"allow_out"`
	DenyOut  []string `json:"deny_out"`
}

// policy checks what differs from the engine's own rules; nil lists are empty ones.
func (b *networkBody) policy() (p ringfence.NetworkPolicy, err error) {
	if b == nil {
		return p, nil
	}
	for i, entry := range b.DenyOut {
		prefix, err := netip.ParsePrefix(entry)
		if err != nil {
			var addr netip.Addr
			addr, err = netip.ParseAddr(entry)
			prefix = netip.PrefixFrom(addr, addr.BitLen())
		}
		if err != nil || !prefix.Addr().Is4() {
			field := fmt.Sprintf("network.deny_out[%d]", i)
			return p, invalid(field, "%s is %q, which is no IPv4 address and no network in CIDR notation", field, cut(entry)).
				WithHint("names belong into allow_out; with deny_out 0.0.0.0/0 nothing else may leave")
		}
	}
	return ringfence.NetworkPolicy{AllowOut: b.AllowOut, DenyOut: b.DenyOut}, nil
}

func networkWire(p ringfence.NetworkPolicy) networkBody {
	spell := func(entries []string) []string {
		list := []string{}
		for _, e := range entries {
			if addr, err := netip.ParseAddr(e); err == nil && addr.Is4() {
				e += "/32"
			}
			list = append(list, e)
		}
		return list
	}
	return networkBody{spell(p.AllowOut), spell(p.DenyOut)}
}

type sandboxBody struct {
	ID            string            `json:"id"`
	Name          string            `json:"name"`
	Status        string            `json:"status"`
	VCPU          int               `json:"vcpu_count"`
	MemoryMiB     int64             `json:"memory_mib"`
	CreatedAt     string            `json:"created_at"`
	AccessToken   string            `json:"access_token,omitempty"`
	Timeout       *int64            `json:"timeout_seconds,omitempty"`
	IdleTimeout   *int64            `json:"idle_timeout_seconds,omitempty"`
	AutoDelete    *int64            `json:"auto_delete_seconds,omitempty"`
	AutoDeleteAt  string            `json:"auto_delete_at,omitempty"`
	Network       networkBody       `json:"network"`
	Metadata      map[string]string `json:"metadata"`
	PreviewAccess string            `json:"preview_access"`
}

// statuses spells states as the oldest of the SDKs knows them.
var statuses = map[ringfence.State]string{
	ringfence.StateStarting: "resuming", ringfence.StateRunning: "active", ringfence.StatePausing: "paused",
	ringfence.StatePaused: "paused", ringfence.StateResuming: "resuming", ringfence.StateFailed: "failed", ringfence.StateDeleted: "deleted",
}

func (c *call) wire(sb *ringfence.Sandbox) sandboxBody {
	whole := func(d time.Duration) *int64 {
		n := int64(math.Ceil(d.Seconds()))
		return &n
	}
	body := sandboxBody{
		ID: sb.ID, Name: sb.Name, Status: statuses[sb.State], VCPU: sb.Size.VCPU, MemoryMiB: sb.Size.MemoryMiB, CreatedAt: ringfence.FormatTime(sb.CreatedAt),
		Network: networkWire(sb.Network), Metadata: sb.Metadata, PreviewAccess: "public", AutoDeleteAt: ringfence.FormatTime(c.Engine.Instants(sb).DeleteAt),
	}
	if body.Metadata == nil {
		body.Metadata = map[string]string{}
	}
	if d := sb.Deadlines; d.OnTimeout == ringfence.OnTimeoutPause {
		if d.Timeout > 0 {
			body.Timeout = whole(d.Timeout)
		}
		if d.IdleTimeout > 0 {
			body.IdleTimeout = whole(d.IdleTimeout)
		}
	}
	if sb.Deadlines.AutoDelete != nil {
		body.AutoDelete = whole(*sb.Deadlines.AutoDelete)
	}
	return body
}

// reply answers with a sandbox and a token of it.
func (c *call) reply(status int, sb *ringfence.Sandbox) error {
	token, err := c.Engine.AccessToken(c.r.Context(), c.who.Project, sb.ID)
	if err != nil {
		return err
	}
	body := c.wire(sb)
	body.AccessToken = token
	return dialect.Reply(c.w, status, body)
}

// seconds reads a number of seconds; absent and null are nil.
func seconds(field string, raw json.RawMessage, least, most int64) (*time.Duration, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var n int64
	if err := json.Unmarshal(raw, &n); err != nil || n < least || n > most {
		return nil, invalid(field, "%s has to be a whole number from %d to %d", field, least, most)
	}
	d := time.Duration(n) * time.Second
	return &d, nil
}

// previewAccess accepts what there is: a port that was not published is private in any case.
func previewAccess(value *string) error {
	switch {
	case value == nil || *value == "" || *value == "public":
		return nil
	case *value == "private":
		return notSupported("preview_access", "preview_access %q as a sandbox's default is not supported", "private").
			WithHint("leave it out: a port is private until it is published, and get_preview_token opens it; publish a port with access public to open it to everybody")
	}
	return invalid("preview_access", "preview_access is %q; it has to be public or private", cut(*value))
}

type createBody struct {
	Name          string            `json:"name"`
	FromTemplate  *string           `json:"from_template"`
	FromSnapshot  *string           `json:"from_snapshot"`
	Timeout       json.RawMessage   `json:"timeout_seconds"`
	IdleTimeout   json.RawMessage   `json:"idle_timeout_seconds"`
	AutoDelete    json.RawMessage   `json:"auto_delete_seconds"`
	Metadata      map[string]string `json:"metadata"`
	Env           map[string]string `json:"env_vars"`
	Secrets       map[string]string `json:"secrets"`
	Network       *networkBody      `json:"network"`
	PreviewAccess *string           `json:"preview_access"`
}

func (c *call) create() error {
	var in createBody
	if err := dialect.Decode(c.w, c.r, c.MaxBody, &in); err != nil {
		return err
	}
	if in.Name == "" || len(in.Name) > maxName {
		return invalid("name", "name has to be text of 1 to %d bytes", maxName)
	}
	if len(in.Secrets) > 0 {
		keys := slices.Sorted(maps.Keys(in.Secrets))
		return secretsMissing("secrets." + cut(keys[0]))
	}
	if err := previewAccess(in.PreviewAccess); err != nil {
		return err
	}
	req := engine.CreateRequest{Project: c.who.Project, Name: in.Name, Metadata: in.Metadata, Env: map[string]string{"HOME": home, "USER": "user"}}
	maps.Copy(req.Env, in.Env)
	var err error
	if req.Deadlines, err = in.deadlines(); err != nil {
		return err
	}
	if req.Network, err = in.Network.policy(); err != nil {
		return err
	}
	switch {
	case in.FromSnapshot != nil && *in.FromSnapshot != "" && in.FromTemplate != nil && *in.FromTemplate != "":
		return invalid("from_snapshot", "from_template and from_snapshot cannot both be given")
	case in.FromSnapshot != nil && *in.FromSnapshot != "":
		req.Snapshot = *in.FromSnapshot
	default:
		name := ""
		if in.FromTemplate != nil {
			name = *in.FromTemplate
		}
		t, err := c.template(name)
		if err != nil {
			return err
		}
		req.Template = t.Name
	}
	sb, _, err := c.Engine.Create(c.r.Context(), req)
	if err != nil {
		return err
	}
	c.sandbox = sb.ID
	c.note()
	return c.reply(http.StatusCreated, sb)
}

// deadlines are those of a new sandbox. What passes pauses it, as in the original.
func (b *createBody) deadlines() (ringfence.Deadlines, error) {
	d := ringfence.Deadlines{OnTimeout: ringfence.OnTimeoutPause}
	timeout, err := seconds("timeout_seconds", b.Timeout, 1, maxTimeout)
	if err != nil {
		return d, err
	}
	idle, err := seconds("idle_timeout_seconds", b.IdleTimeout, 1, maxTimeout)
	if err != nil {
		return d, err
	}
	if timeout != nil {
		d.Timeout = *timeout
	}
	if idle != nil {
		d.IdleTimeout = *idle
	}
	d.AutoDelete, err = seconds("auto_delete_seconds", b.AutoDelete, 0, maxAutoDelete)
	return d, err
}

// living returns the sandbox of the request, unless it has ended: then it is not there.
func (c *call) living() (*ringfence.Sandbox, error) {
	sb, err := c.Engine.Get(c.r.Context(), c.who.Project, c.sandbox)
	if err == nil && sb.State.Ended() {
		err = ringfence.Errorf(ringfence.CodeSandboxEnded, "the sandbox %s has ended: %s", sb.ID, sb.Detail)
	}
	return sb, err
}

func (c *call) get() error {
	sb, err := c.living()
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, sb)
}

// page is how many rows are read at a time.
const page = 500

// list answers with all that a filter selects, or with a part of it.
func (c *call) list() error {
	query := c.r.URL.Query()
	f := ringfence.SandboxFilter{Project: c.who.Project, Limit: page}
	for name, values := range query {
		if key, ok := strings.CutPrefix(name, "metadata."); ok {
			if len(values) > 1 {
				return invalid(name, "the query parameter %q is given %d times", cut(name), len(values))
			}
			if f.Metadata == nil {
				f.Metadata = map[string]string{}
			}
			f.Metadata[key] = values[0]
		}
	}
	nothing, err := states(query["status"], &f)
	if err != nil {
		return err
	}
	limit, err := number(query, "limit", -1, 0, 1<<31)
	if err != nil {
		return err
	}
	offset, err := number(query, "offset", 0, 0, 1<<31)
	if err != nil {
		return err
	}
	out, total := []sandboxBody{}, 0
	for !nothing {
		found, err := c.Engine.List(c.r.Context(), f)
		if err != nil {
			return err
		}
		for _, sb := range found {
			if total >= offset && (limit < 0 || len(out) < limit) {
				out = append(out, c.wire(sb))
			}
			total++
		}
		if len(found) < page {
			break
		}
		last := found[len(found)-1]
		f.Before = &ringfence.SandboxCursor{CreatedAt: last.CreatedAt, ID: last.ID}
	}
	c.w.Header().Set("X-Total-Count", strconv.Itoa(total))
	return dialect.Reply(c.w, http.StatusOK, out)
}

// states reads which statuses are asked for. nothing: none of them is of a sandbox that is there.
func states(wanted []string, f *ringfence.SandboxFilter) (nothing bool, err error) {
	for status := range strings.SplitSeq(strings.Join(wanted, ","), ",") {
		switch status {
		case "":
			continue
		case "active":
			f.States = append(f.States, ringfence.StateRunning)
		case "paused":
			f.States = append(f.States, ringfence.StatePaused, ringfence.StatePausing)
		case "resuming":
			f.States = append(f.States, ringfence.StateResuming, ringfence.StateStarting)
		case "starting", "pausing", "migrating", "failed", "deleted": // they go by other names, or are gone
		default:
			return false, invalid("status", "there is no status %q", cut(status)).WithHint("there are active, paused, resuming, failed")
		}
		nothing = true
	}
	return nothing && len(f.States) == 0, nil
}

func number(query url.Values, name string, def, least, most int) (int, error) {
	text := query.Get(name)
	if text == "" {
		return def, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, invalid(name, "%s has to be a whole number from %d to %d", name, least, most)
	}
	return n, nil
}

// update changes what is there; null clears the numbers. All of it is checked first.
func (c *call) update() error {
	var in struct {
		Metadata      map[string]string `json:"metadata"`
		Network       *networkBody      `json:"network"`
		AutoDelete    json.RawMessage   `json:"auto_delete_seconds"`
		Timeout       json.RawMessage   `json:"timeout_seconds"`
		IdleTimeout   json.RawMessage   `json:"idle_timeout_seconds"`
		PreviewAccess *string           `json:"preview_access"`
	}
	if err := dialect.Decode(c.w, c.r, c.MaxBody, &in); err != nil {
		return err
	}
	sb, err := c.living()
	if err != nil {
		return err
	}
	if in.Metadata == nil && in.Network == nil && len(in.AutoDelete) == 0 && len(in.Timeout) == 0 && len(in.IdleTimeout) == 0 && in.PreviewAccess == nil {
		return invalid("", "there is nothing in the body that can be changed").
			WithHint("give metadata, network, timeout_seconds or auto_delete_seconds")
	}
	if err := previewAccess(in.PreviewAccess); err != nil {
		return err
	}
	if err := engine.ValidMetadata(in.Metadata); err != nil {
		return err
	}
	change, err := c.change(sb, in.Timeout, in.IdleTimeout, in.AutoDelete)
	if err != nil {
		return err
	}
	policy, err := in.Network.policy()
	if err != nil {
		return err
	}
	ctx := c.r.Context()
	if in.Network != nil {
		if sb.State != ringfence.StateRunning {
			return ringfence.Errorf(ringfence.CodeFailedPrecondition, "the network of a sandbox that is %s cannot be changed", statuses[sb.State]).
				WithHint("resume it first")
		}
		if _, err := c.Engine.SetNetwork(ctx, c.who.Project, sb.ID, policy); err != nil {
			return err
		}
	}
	if change != (engine.DeadlinesChange{}) {
		if _, err := c.Engine.SetDeadlines(ctx, c.who.Project, sb.ID, change); err != nil {
			return err
		}
	}
	if in.Metadata != nil {
		if _, err := c.Engine.SetMetadata(ctx, c.who.Project, sb.ID, in.Metadata); err != nil {
			return err
		}
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// change is what of the deadlines is to be changed.
func (c *call) change(sb *ringfence.Sandbox, timeout, idle, autoDelete json.RawMessage) (change engine.DeadlinesChange, err error) {
	to := func(d *time.Duration) *time.Duration {
		if d == nil {
			d = new(time.Duration) // none
		}
		return d
	}
	if len(timeout) > 0 {
		d, err := seconds("timeout_seconds", timeout, 1, maxTimeout)
		if err != nil {
			return change, err
		}
		change.Timeout = to(d)
	}
	if len(idle) > 0 {
		d, err := seconds("idle_timeout_seconds", idle, 1, maxTimeout)
		if err != nil {
			return change, err
		}
		change.IdleTimeout = to(d)
	}
	if (change.Timeout != nil || change.IdleTimeout != nil) && sb.Deadlines.OnTimeout != ringfence.OnTimeoutPause {
		pause := ringfence.OnTimeoutPause // it was made by another API
		change.OnTimeout = &pause
	}
	if len(autoDelete) > 0 {
		d, err := seconds("auto_delete_seconds", autoDelete, 0, maxAutoDelete)
		if err != nil {
			return change, err
		}
		change.AutoDelete = &d
	}
	return change, nil
}

func (c *call) kill() error {
	if _, err := c.living(); err != nil {
		return err
	}
	if err := c.Engine.Kill(c.r.Context(), c.who.Project, c.sandbox); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// pausePatience is how long a pause is waited for, less than the SDKs' patience of 30 s.
const pausePatience = 25 * time.Second

func (c *call) pause() error {
	sb, err := c.living()
	if err != nil {
		return err
	}
	if sb.State == ringfence.StatePaused || sb.State == ringfence.StatePausing {
		return ringfence.Errorf(ringfence.CodeFailedPrecondition, "the sandbox is paused already")
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), pausePatience)
	defer cancel()
	_, err = c.Engine.Pause(ctx, c.who.Project, sb.ID)
	switch {
	case err == nil:
		c.w.WriteHeader(http.StatusNoContent)
		return nil
	case ctx.Err() != nil && c.r.Context().Err() == nil: // it goes on
		return dialect.Reply(c.w, http.StatusAccepted, map[string]string{"id": sb.ID, "status": "pausing"})
	}
	return err
}

func (c *call) resume() error {
	sb, err := c.living()
	if err != nil {
		return err
	}
	if sb.State == ringfence.StateRunning {
		return ringfence.Errorf(ringfence.CodeFailedPrecondition, "the sandbox is active, and not paused")
	}
	return c.wake()
}

func (c *call) activate() error {
	if _, err := c.living(); err != nil {
		return err
	}
	return c.wake()
}

// wake resumes the sandbox unless it runs.
func (c *call) wake() error {
	sb, err := c.Engine.Resume(c.r.Context(), c.who.Project, c.sandbox)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, sb)
}

// none answers with an empty list.
func (c *call) none() error { return dialect.Reply(c.w, http.StatusOK, []string{}) }
