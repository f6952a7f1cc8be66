package declaw

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/dialect"
	"ringfence.dev/ringfence/internal/engine"
)

const (
	templatePrefix  = "tpl-"
	defaultTemplate = "base"
	defaultTimeout  = 300 * time.Second
	defaultPage     = 100
	maxPage         = 1000
	maxKills        = 1000 // sandboxes of one kill-many
)

type createBody struct {
	Template  string            `json:"template"`
	Timeout   *float64          `json:"timeout"`
	Secure    *bool             `json:"secure"` // accepted; docs/compatibility/declaw.md says what it means
	Metadata  map[string]string `json:"metadata"`
	Envs      map[string]string `json:"envs"`
	VaultRefs json.RawMessage   `json:"vault_refs"`
	Network   *networkBody      `json:"network"`
	Security  json.RawMessage   `json:"security"`
	Lifecycle *lifecycleBody    `json:"lifecycle"`
	Volumes   json.RawMessage   `json:"volumes"`
	Resources json.RawMessage   `json:"resources"`
}

type lifecycleBody struct {
	OnTimeout  ringfence.OnTimeout `json:"on_timeout"`
	AutoResume bool                `json:"auto_resume"`
}

type resourcesBody struct {
	VCPUs    int   `json:"vcpus"`
	MemoryMB int64 `json:"memory_mb"`
}

type sandboxBody struct {
	SandboxID          string            `json:"sandbox_id"`
	TemplateID         string            `json:"template_id"`
	Name               string            `json:"name"`
	State              string            `json:"state"`
	Timeout            int64             `json:"timeout"`
	Metadata           map[string]string `json:"metadata"`
	Envs               map[string]string `json:"envs"`
	Network            networkBody       `json:"network"`
	Security           any               `json:"security"` // nothing of it is kept
	Lifecycle          lifecycleBody     `json:"lifecycle"`
	Resources          resourcesBody     `json:"resources"`
	EnvdAccessToken    string            `json:"envd_access_token,omitempty"`
	SandboxDomain      string            `json:"sandbox_domain"`
	TrafficAccessToken string            `json:"traffic_access_token,omitempty"`
	GuestIP            string            `json:"guest_ip"`
	EnvdPort           int               `json:"envd_port"`
	StartedAt          *string           `json:"started_at"`
	EndAt              *string           `json:"end_at"`
}

// stateOf is a state in Declaw's words.
func stateOf(s ringfence.State) string {
	switch s {
	case ringfence.StateStarting:
		return "creating"
	case ringfence.StateRunning:
		return "running"
	case ringfence.StatePausing, ringfence.StatePaused, ringfence.StateResuming:
		return "paused"
	}
	return "killed"
}

// statesOf are the engine's states of one in Declaw's words.
var statesOf = map[string][]ringfence.State{
	"creating": {ringfence.StateStarting},
	"running":  {ringfence.StateRunning},
	"live":     {ringfence.StateRunning},
	"paused":   {ringfence.StatePausing, ringfence.StatePaused, ringfence.StateResuming},
	"killed":   {ringfence.StateFailed, ringfence.StateDeleted},
	"all": {
		ringfence.StateStarting, ringfence.StateRunning, ringfence.StatePausing, ringfence.StatePaused, ringfence.StateResuming,
		ringfence.StateFailed, ringfence.StateDeleted,
	},
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

func (c *call) wire(sb *ringfence.Sandbox) sandboxBody {
	d := sb.Deadlines
	out := sandboxBody{
		SandboxID: sb.ID, TemplateID: templatePrefix + sb.Template, Name: sb.Template, State: stateOf(sb.State),
		Timeout: int64(math.Round(d.Timeout.Seconds())), Metadata: orEmpty(sb.Metadata), Envs: orEmpty(sb.Env), Network: networkWire(sb.Network),
		Lifecycle: lifecycleBody{OnTimeout: ringfence.OnTimeoutKill, AutoResume: !d.NoAutoResume},
		Resources: resourcesBody{sb.Size.VCPU, sb.Size.MemoryMiB}, SandboxDomain: c.r.Host, EnvdPort: ownPort,
		StartedAt: wireTime(sb.StartedAt), EndAt: wireTime(sb.ExpiresAt),
	}
	if d.OnTimeout != "" {
		out.Lifecycle.OnTimeout = d.OnTimeout
	}
	if sb.StartedAt.IsZero() {
		out.StartedAt = wireTime(sb.CreatedAt)
	}
	if sb.State.Ended() {
		out.EndAt = wireTime(sb.EndedAt)
	}
	return out
}

// seconds reads a number of seconds, 0 for none.
func seconds(field string, n float64) (time.Duration, error) {
	if !(n >= 0) || n > ringfence.MaxTimeoutSeconds { // NaN is refused too
		return 0, invalid(field, "%s has to be from 0, which is none, to %d seconds", field, ringfence.MaxTimeoutSeconds)
	}
	if n == 0 {
		return 0, nil
	}
	return max(time.Duration(math.Round(n*float64(time.Second))), time.Microsecond), nil
}

func (c *call) create() error {
	var in createBody
	if err := c.decode(&in); err != nil {
		return err
	}
	if !empty(in.Resources) {
		return ringfence.Errorf(ringfence.CodePermissionDenied, "resources cannot be chosen: a template has its size").WithField("resources")
	}
	network, missing, err := readSecurity(in.Security)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		raw  json.RawMessage
	}{{"vault_refs", in.VaultRefs}, {"volumes", in.Volumes}} {
		if !empty(f.raw) && enabled(f.raw) {
			missing = append(missing, f.name)
		}
	}
	if in.Network != nil {
		network = in.Network // it goes before the security policy's
	}
	policy, more := network.policy()
	if missing = append(missing, more...); len(missing) > 0 {
		return refuseFeatures(missing)
	}
	d := ringfence.Deadlines{Timeout: defaultTimeout, NoAutoResume: true, FixedTimeout: true}
	if in.Timeout != nil {
		if d.Timeout, err = seconds("timeout", *in.Timeout); err != nil {
			return err
		}
	}
	if l := in.Lifecycle; l != nil {
		if l.OnTimeout != "" && l.OnTimeout != ringfence.OnTimeoutKill && l.OnTimeout != ringfence.OnTimeoutPause {
			return invalid("lifecycle.on_timeout", `lifecycle.on_timeout has to be "kill" or "pause"`)
		}
		d.OnTimeout, d.NoAutoResume = l.OnTimeout, !l.AutoResume
	}
	template := strings.TrimPrefix(in.Template, templatePrefix)
	if template == "" {
		template = defaultTemplate
	}
	secret, _ := ringfence.NormalizeAPIKey(dialect.Credential(c.r)) // it was let in with it
	sb, token, err := c.Engine.Create(c.ctx(), engine.CreateRequest{
		Project: c.who.Project, Template: template, Env: in.Envs, Metadata: in.Metadata, Deadlines: d, Network: policy,
		IdempotencyKey: c.r.Header.Get("Idempotency-Key"), Secret: secret,
	})
	if err != nil {
		return err
	}
	c.w.Note("declaw /sandboxes", sb.ID, c.who)
	out := c.wire(sb)
	out.EnvdAccessToken, out.TrafficAccessToken = token, token
	return c.reply(http.StatusCreated, out)
}

func (c *call) get() error {
	sb, err := c.Engine.Get(c.ctx(), c.who.Project, c.id())
	if err != nil {
		return err
	}
	if text := c.r.URL.Query().Get("timeout"); text != "" && !sb.State.Ended() { // connect sets it
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return invalid("timeout", "timeout has to be a number of seconds")
		}
		if c.who.SandboxID != "" {
			return ringfence.Errorf(ringfence.CodePermissionDenied, "a sandbox's access token does not set its timeout; use an API key")
		}
		if sb, err = c.changeTimeout(n); err != nil {
			return err
		}
	}
	return c.reply(http.StatusOK, c.wire(sb))
}

func (c *call) changeTimeout(n float64) (*ringfence.Sandbox, error) {
	timeout, err := seconds("timeout", n)
	if err != nil {
		return nil, err
	}
	return c.Engine.SetDeadlines(c.ctx(), c.who.Project, c.id(), engine.DeadlinesChange{Timeout: &timeout})
}

func (c *call) setTimeout() error {
	var in struct {
		Timeout *float64 `json:"timeout"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	if in.Timeout == nil {
		return invalid("timeout", "timeout is needed")
	}
	if _, err := c.changeTimeout(*in.Timeout); err != nil {
		return err
	}
	return c.reply(http.StatusOK, map[string]bool{"ok": true})
}

func (c *call) status() error {
	sb, err := c.Engine.Get(c.ctx(), c.who.Project, c.id())
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, map[string]bool{"is_running": sb.State == ringfence.StateRunning})
}

// page is what part of a list a query asks for.
type page struct {
	limit, offset int
	before        *ringfence.SandboxCursor
}

func (c *call) page() (p page, err error) {
	query := c.r.URL.Query()
	p.limit = defaultPage
	for name, to := range map[string]*int{"limit": &p.limit, "offset": &p.offset} {
		if text := query.Get(name); text != "" {
			if *to, err = strconv.Atoi(text); err != nil || *to < 0 {
				return p, invalid(name, "%s has to be a whole number from 0", name)
			}
		}
	}
	p.limit = min(max(p.limit, 1), maxPage)
	if text := query.Get("next_token"); text != "" {
		raw, err := base64.RawURLEncoding.DecodeString(text)
		at, id, ok := strings.Cut(string(raw), ".")
		n, nerr := strconv.ParseInt(at, 10, 64)
		if err != nil || !ok || nerr != nil || !ringfence.ValidSandboxID(id) && !ringfence.ValidSnapshotID(id) {
			return p, invalid("next_token", "next_token is not one that this server gave out")
		}
		p.before = &ringfence.SandboxCursor{CreatedAt: time.UnixMicro(n), ID: id}
	}
	return p, nil
}

func nextToken(created time.Time, id string) *string {
	s := base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(created.UnixMicro(), 10) + "." + id))
	return &s
}

func (c *call) list() error {
	p, err := c.page()
	if err != nil {
		return err
	}
	query := c.r.URL.Query()
	f := ringfence.SandboxFilter{Project: c.who.Project, Limit: maxPage, Before: p.before, Metadata: metadataOf(query)}
	for _, names := range query["state"] {
		for name := range strings.SplitSeq(names, ",") {
			states, ok := statesOf[name]
			if !ok {
				return invalid("state", "there is no state %q; the states are creating, running, paused, killed, and all", name)
			}
			for _, s := range states {
				if !slices.Contains(f.States, s) {
					f.States = append(f.States, s)
				}
			}
		}
	}
	out := struct {
		Sandboxes []sandboxBody `json:"sandboxes"`
		NextToken *string       `json:"next_token"`
		Total     int           `json:"total"`
	}{Sandboxes: []sandboxBody{}}
	// The total wants all of them; of most there is one page.
	var all []*ringfence.Sandbox
	for {
		found, err := c.Engine.List(c.ctx(), f)
		if err != nil {
			return err
		}
		if all = append(all, found...); len(found) < maxPage {
			break
		}
		f.Before = &ringfence.SandboxCursor{CreatedAt: all[len(all)-1].CreatedAt, ID: all[len(all)-1].ID}
	}
	out.Total = len(all)
	all = all[min(p.offset, len(all)):]
	if len(all) > p.limit {
		all = all[:p.limit]
		last := all[len(all)-1]
		out.NextToken = nextToken(last.CreatedAt, last.ID)
	}
	for _, sb := range all {
		out.Sandboxes = append(out.Sandboxes, c.wire(sb))
	}
	return c.reply(http.StatusOK, out)
}

// metadataOf reads the metadata that a list is to be of. The Python SDK sends a dict as
// Python prints it, which is JSON with other quotes where nothing is escaped; what
// cannot be read selects all.
func metadataOf(query url.Values) map[string]string {
	text := query.Get("metadata")
	var m map[string]string
	if text == "" || json.Unmarshal([]byte(text), &m) == nil {
		return m
	}
	if !strings.ContainsAny(text, `"\`) && json.Unmarshal([]byte(strings.ReplaceAll(text, "'", `"`)), &m) == nil {
		return m
	}
	return nil
}

// kill ends a sandbox. It has ended when the answer goes out, also where the caller would
// not have waited for that.
func (c *call) kill() error {
	ended, err := c.end(c.id())
	if err != nil {
		return err
	}
	if c.async() {
		return c.reply(http.StatusAccepted, map[string]bool{"queued": ended})
	}
	return c.reply(http.StatusOK, map[string]bool{"killed": ended})
}

func (c *call) async() bool { return c.r.URL.Query().Get("async") == "true" }

// end kills a sandbox, and reports whether there was something to kill.
func (c *call) end(id string) (bool, error) {
	sb, err := c.Engine.Get(c.ctx(), c.who.Project, id)
	if err != nil || sb.State.Ended() {
		return false, err
	}
	return true, c.Engine.Kill(c.ctx(), c.who.Project, id)
}

func (c *call) killMany() error {
	var in struct {
		SandboxIDs []string `json:"sandbox_ids"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	if len(in.SandboxIDs) > maxKills {
		return invalid("sandbox_ids", "sandbox_ids has %d entries, at most %d fit", len(in.SandboxIDs), maxKills)
	}
	word, status := "killed", http.StatusOK
	if c.async() {
		word, status = "queued", http.StatusAccepted
	}
	results := map[string]map[string]any{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	places := make(chan struct{}, 8)
	for _, id := range in.SandboxIDs {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			ended, err := c.end(id)
			result := map[string]any{word: ended}
			if err != nil {
				result = map[string]any{"error": messageOf(err)}
			}
			mu.Lock()
			defer mu.Unlock()
			results[id] = result
		})
	}
	wg.Wait()
	return c.reply(status, map[string]any{"results": results})
}

func (c *call) metrics() error {
	query := c.r.URL.Query()
	var bounds [2]time.Time
	for i, name := range []string{"start", "end"} {
		if text := query.Get(name); text != "" {
			at, err := parseTime(text)
			if err != nil {
				return invalid(name, "%s has to be a time such as 2026-01-02T15:04:05Z", name)
			}
			bounds[i] = at
		}
	}
	now, samples, err := c.Engine.Metrics(c.ctx(), c.who.Project, c.id(), bounds[0], bounds[1])
	if err != nil {
		return err
	}
	if !now.At.Before(bounds[0]) && (bounds[1].IsZero() || !now.At.After(bounds[1])) {
		samples = append(samples, now)
	}
	type body struct {
		Timestamp       *string `json:"timestamp"`
		CPUUsagePercent float64 `json:"cpu_usage_percent"`
		MemoryUsageMB   float64 `json:"memory_usage_mb"`
		DiskUsageMB     float64 `json:"disk_usage_mb"`
	}
	out := []body{}
	for _, s := range samples {
		out = append(out, body{wireTime(s.At), s.CPUPercent, float64(s.MemoryBytes) / (1 << 20), float64(s.DiskBytes) / (1 << 20)})
	}
	return c.reply(http.StatusOK, out)
}

// parseTime reads ISO 8601 as the SDKs write it. Python leaves the zone out where there is
// none: it is taken for UTC, and a space for the plus that a query makes of it.
func parseTime(text string) (time.Time, error) {
	text = strings.ReplaceAll(text, " ", "+")
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	return time.Parse("2006-01-02T15:04:05", text)
}
