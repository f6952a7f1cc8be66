package api

import (
	"encoding/json"
	"math"
	"net/http"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/engine"
)

// deadlinesBody is what happens to a sandbox by itself, in requests.
type deadlinesBody struct {
	TimeoutSeconds     json.RawMessage `json:"timeout_seconds"`
	OnTimeout          json.RawMessage `json:"on_timeout"`
	IdleTimeoutSeconds json.RawMessage `json:"idle_timeout_seconds"`
	AutoDeleteSeconds  json.RawMessage `json:"auto_delete_seconds"`
	AutoResume         json.RawMessage `json:"auto_resume"`
}

// change reads what is there: an absent field changes nothing, null is none.
func (b *deadlinesBody) change() (c engine.DeadlinesChange, err error) {
	if len(b.TimeoutSeconds) > 0 {
		d, err := seconds("timeout_seconds", b.TimeoutSeconds, 0)
		if err != nil {
			return c, err
		}
		c.Timeout = &d
	}
	if len(b.IdleTimeoutSeconds) > 0 {
		d, err := seconds("idle_timeout_seconds", b.IdleTimeoutSeconds, 0)
		if err != nil {
			return c, err
		}
		c.IdleTimeout = &d
	}
	if raw := b.AutoDeleteSeconds; len(raw) > 0 {
		var after *time.Duration
		if string(raw) != "null" {
			var n float64
			if err := json.Unmarshal(raw, &n); err != nil || !(n >= 0) || n > ringfence.MaxTimeoutSeconds {
				return c, invalid("auto_delete_seconds", "auto_delete_seconds has to be a number from 0 to %d, or null for none", ringfence.MaxTimeoutSeconds).
					WithHint("0 means at once")
			}
			d := time.Duration(math.Round(n * float64(time.Second)))
			after = &d
		}
		c.AutoDelete = &after
	}
	if raw := b.OnTimeout; len(raw) > 0 && string(raw) != "null" {
		var to ringfence.OnTimeout
		if json.Unmarshal(raw, &to) != nil || (to != ringfence.OnTimeoutKill && to != ringfence.OnTimeoutPause) {
			return c, invalid("on_timeout", "on_timeout has to be \"kill\" or \"pause\"")
		}
		c.OnTimeout = &to
	}
	if raw := b.AutoResume; len(raw) > 0 && string(raw) != "null" {
		var resume bool
		if json.Unmarshal(raw, &resume) != nil {
			return c, invalid("auto_resume", "auto_resume has to be true or false")
		}
		not := !resume
		c.NoAutoResume = &not
	}
	return c, nil
}

// deadlines reads those of a sandbox that is to be made.
func (b *deadlinesBody) deadlines() (d ringfence.Deadlines, err error) {
	c, err := b.change()
	if err != nil {
		return d, err
	}
	if c.Timeout != nil {
		d.Timeout = *c.Timeout
	}
	if c.OnTimeout != nil {
		d.OnTimeout = *c.OnTimeout
	}
	if c.IdleTimeout != nil {
		d.IdleTimeout = *c.IdleTimeout
	}
	if c.AutoDelete != nil {
		d.AutoDelete = *c.AutoDelete
	}
	if c.NoAutoResume != nil {
		d.NoAutoResume = *c.NoAutoResume
	}
	return d, nil
}

func (c *call) patchSandbox() error {
	var in struct {
		Metadata map[string]string `json:"metadata"`
		deadlinesBody
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	change, err := in.change()
	if err != nil {
		return err
	}
	if err := engine.ValidMetadata(in.Metadata); err != nil {
		return err // before anything is changed
	}
	sb, err := c.Engine.SetDeadlines(c.r.Context(), c.who.Project, c.r.PathValue("id"), change)
	if err == nil && in.Metadata != nil {
		sb, err = c.Engine.SetMetadata(c.r.Context(), c.who.Project, c.r.PathValue("id"), in.Metadata)
	}
	return c.sandbox(sb, err)
}

// accessToken gives out a token of a sandbox again.
func (c *call) accessToken() error {
	if err := c.decode(&struct{}{}); err != nil {
		return err
	}
	token, err := c.Engine.AccessToken(c.r.Context(), c.who.Project, c.r.PathValue("id"))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, map[string]string{"access_token": token})
}

func (c *call) pauseSandbox() error {
	var in struct {
		Memory *bool `json:"memory"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	if in.Memory != nil && !*in.Memory {
		return ringfence.Errorf(ringfence.CodeNotYetSupported, "a pause without memory is not supported yet").WithField("memory").
			WithHint("leave memory out: what is kept then is memory and disk")
	}
	sb, err := c.Engine.Pause(c.r.Context(), c.who.Project, c.r.PathValue("id"))
	return c.sandbox(sb, err)
}

func (c *call) resumeSandbox() error {
	if err := c.decode(&struct{}{}); err != nil {
		return err
	}
	sb, err := c.Engine.Resume(c.r.Context(), c.who.Project, c.r.PathValue("id"))
	return c.sandbox(sb, err)
}

func (c *call) restoreSandbox() error {
	var in struct {
		Snapshot string `json:"snapshot"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	sb, err := c.Engine.RestoreInPlace(c.r.Context(), c.who.Project, c.r.PathValue("id"), in.Snapshot)
	return c.sandbox(sb, err)
}

// sandbox answers with a sandbox, unless there is an error.
func (c *call) sandbox(sb *ringfence.Sandbox, err error) error {
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, c.sandboxWire(sb))
}

func (c *call) forkSandbox() error {
	var in struct {
		Count *int `json:"count"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	count := 1
	if in.Count != nil {
		count = *in.Count
	}
	forks, err := c.Engine.Fork(c.r.Context(), c.who.Project, c.r.PathValue("id"), count)
	if err != nil {
		return err
	}
	out := struct {
		Sandboxes []sandboxBody `json:"sandboxes"`
	}{}
	for _, f := range forks {
		body := c.sandboxWire(f.Sandbox)
		body.AccessToken = f.Token
		out.Sandboxes = append(out.Sandboxes, body)
	}
	return c.reply(http.StatusCreated, out)
}

type snapshotBody struct {
	ID        string  `json:"id"`
	Name      string  `json:"name"`
	SandboxID string  `json:"sandbox_id"`
	Template  string  `json:"template"`
	VCPU      int     `json:"vcpu"`
	MemoryMiB int64   `json:"memory_mib"`
	DiskMiB   int64   `json:"disk_mib"`
	Bytes     int64   `json:"bytes"`
	CreatedAt *string `json:"created_at"`
}

func snapshotWire(sn *ringfence.Snapshot) snapshotBody {
	return snapshotBody{
		ID: sn.ID, Name: sn.Name, SandboxID: sn.SandboxID, Template: sn.Template, VCPU: sn.Size.VCPU, MemoryMiB: sn.Size.MemoryMiB,
		DiskMiB: sn.Size.DiskMiB, Bytes: sn.Bytes, CreatedAt: wireTime(sn.CreatedAt),
	}
}

func (c *call) createSnapshot() error {
	var in struct {
		Name string `json:"name"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	sn, err := c.Engine.Snapshot(c.r.Context(), c.who.Project, c.r.PathValue("id"), in.Name)
	if err != nil {
		return err
	}
	c.w.Header().Set("Location", "/v1/snapshots/"+sn.ID)
	return c.reply(http.StatusCreated, snapshotWire(sn))
}

func (c *call) getSnapshot() error {
	sn, err := c.Engine.GetSnapshot(c.r.Context(), c.who.Project, c.r.PathValue("snapshot"))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, snapshotWire(sn))
}

func (c *call) deleteSnapshot() error {
	if err := c.Engine.DeleteSnapshot(c.r.Context(), c.who.Project, c.r.PathValue("snapshot")); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

func (c *call) listSnapshots() error {
	limit, err := c.number("limit", defaultPage, 1, maxPage)
	if err != nil {
		return err
	}
	f := ringfence.SnapshotFilter{Project: c.who.Project, SandboxID: c.query.Get("sandbox_id"), Limit: limit + 1}
	if cursor := c.query.Get("cursor"); cursor != "" {
		if f.Before, err = parseCursor(cursor, ringfence.ValidSnapshotID); err != nil {
			return err
		}
	}
	found, err := c.Engine.ListSnapshots(c.r.Context(), f)
	if err != nil {
		return err
	}
	out := struct {
		Snapshots  []snapshotBody `json:"snapshots"`
		NextCursor *string        `json:"next_cursor"`
	}{Snapshots: []snapshotBody{}}
	if len(found) > limit {
		found = found[:limit]
		last := found[limit-1]
		out.NextCursor = null(formatCursor(last.CreatedAt, last.ID))
	}
	for _, sn := range found {
		out.Snapshots = append(out.Snapshots, snapshotWire(sn))
	}
	return c.reply(http.StatusOK, out)
}
