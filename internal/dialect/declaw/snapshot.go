package declaw

import (
	"net/http"
	"strings"
	"time"

	"ringfence.dev/ringfence"
)

type snapshotBody struct {
	SnapshotID      string  `json:"snapshot_id"`
	SandboxID       string  `json:"sandbox_id"`
	Source          string  `json:"source"`
	MemBlobKey      string  `json:"mem_blob_key"`
	VMStateBlobKey  string  `json:"vmstate_blob_key"`
	MemSizeBytes    *int64  `json:"mem_size_bytes"`
	PauseDurationMS *int64  `json:"pause_duration_ms"`
	CreatedAt       *string `json:"created_at"`
}

func snapshotWire(sn *ringfence.Snapshot) snapshotBody {
	return snapshotBody{
		SnapshotID: sn.ID, SandboxID: sn.SandboxID, Source: "manual", MemBlobKey: sn.Object, VMStateBlobKey: sn.Object,
		MemSizeBytes: &sn.Bytes, CreatedAt: wireTime(sn.CreatedAt),
	}
}

// pausePrefix starts the id of what a paused sandbox is in, which goes when it is resumed.
const pausePrefix = "pause-"

func (c *call) pause() error {
	if _, err := c.Engine.Pause(c.ctx(), c.who.Project, c.id()); err != nil {
		return err
	}
	return c.nothing()
}

func (c *call) resume() error {
	if _, err := c.Engine.Resume(c.ctx(), c.who.Project, c.id()); err != nil {
		return err
	}
	return c.nothing()
}

func (c *call) snapshot() error {
	began := time.Now()
	sn, err := c.Engine.Snapshot(c.ctx(), c.who.Project, c.id(), "")
	if err != nil {
		return err
	}
	out := snapshotWire(sn)
	took := time.Since(began).Milliseconds()
	out.PauseDurationMS = &took
	return c.reply(http.StatusCreated, out)
}

func (c *call) listSnapshots() error {
	sb, err := c.Engine.Get(c.ctx(), c.who.Project, c.id())
	if err != nil {
		return err
	}
	out := []snapshotBody{}
	if sb.State == ringfence.StatePaused {
		out = append(out, snapshotBody{
			SnapshotID: pausePrefix + sb.ID, SandboxID: sb.ID, Source: "pause", MemBlobKey: sb.Object, VMStateBlobKey: sb.Object, CreatedAt: wireTime(sb.PausedAt),
		})
	}
	f := ringfence.SnapshotFilter{Project: c.who.Project, SandboxID: sb.ID, Limit: maxPage}
	for {
		found, err := c.Engine.ListSnapshots(c.ctx(), f)
		if err != nil {
			return err
		}
		for _, sn := range found {
			out = append(out, snapshotWire(sn))
		}
		if len(found) < maxPage {
			return c.reply(http.StatusOK, map[string]any{"snapshots": out})
		}
		last := found[len(found)-1]
		f.Before = &ringfence.SandboxCursor{CreatedAt: last.CreatedAt, ID: last.ID}
	}
}

func (c *call) allSnapshots() error {
	p, err := c.page()
	if err != nil {
		return err
	}
	found, err := c.Engine.ListSnapshots(c.ctx(), ringfence.SnapshotFilter{
		Project: c.who.Project, SandboxID: c.r.URL.Query().Get("sandbox_id"), Limit: p.limit + 1, Before: p.before,
	})
	if err != nil {
		return err
	}
	out := struct {
		Snapshots []snapshotBody `json:"snapshots"`
		NextToken *string        `json:"next_token"`
	}{Snapshots: []snapshotBody{}}
	if len(found) > p.limit {
		found = found[:p.limit]
		out.NextToken = nextToken(found[p.limit-1].CreatedAt, found[p.limit-1].ID)
	}
	for _, sn := range found {
		out.Snapshots = append(out.Snapshots, snapshotWire(sn))
	}
	return c.reply(http.StatusOK, out)
}

// deleteSnapshot forgets a snapshot. One that there is not is no error; another sandbox's
// is left alone.
func (c *call) deleteSnapshot() error {
	id := c.r.PathValue("snapshot")
	if strings.HasPrefix(id, pausePrefix) {
		if sb, err := c.Engine.Get(c.ctx(), c.who.Project, c.id()); err != nil {
			return err
		} else if id == pausePrefix+sb.ID && sb.State == ringfence.StatePaused {
			return ringfence.Errorf(ringfence.CodeFailedPrecondition, "the sandbox %s is paused in this snapshot", sb.ID).WithHint("resume or kill the sandbox first")
		}
		return c.nothing()
	}
	sn, err := c.Engine.GetSnapshot(c.ctx(), c.who.Project, id)
	if err == nil && sn.SandboxID == c.id() {
		err = c.Engine.DeleteSnapshot(c.ctx(), c.who.Project, id)
	}
	if err != nil && ringfence.CodeOf(err) != ringfence.CodeNotFound {
		return err
	}
	return c.nothing()
}

// restore makes a sandbox what it was in a snapshot: the one that is asked for, or that
// in which it is paused, or the newest.
func (c *call) restore() error {
	sb, err := c.Engine.Get(c.ctx(), c.who.Project, c.id())
	if err != nil {
		return err
	}
	id, paused := c.r.URL.Query().Get("snapshot_id"), pausePrefix+sb.ID
	if id == "" && sb.State == ringfence.StatePaused {
		id = paused
	}
	if id == "" {
		found, err := c.Engine.ListSnapshots(c.ctx(), ringfence.SnapshotFilter{Project: c.who.Project, SandboxID: sb.ID, Limit: 1})
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return ringfence.Errorf(ringfence.CodeNotFound, "the sandbox %s has no snapshot", sb.ID)
		}
		id = found[0].ID
	}
	switch {
	case id == paused && sb.State == ringfence.StatePaused:
		_, err = c.Engine.Resume(c.ctx(), c.who.Project, sb.ID)
	default:
		_, err = c.Engine.RestoreInPlace(c.ctx(), c.who.Project, sb.ID, id)
	}
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, map[string]string{"sandbox_id": sb.ID, "node_id": "local", "snapshot_id": id})
}
