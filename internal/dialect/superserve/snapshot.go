package superserve

import (
	"net/http"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/dialect"
)

type snapshotBody struct {
	ID         string        `json:"id"`
	SandboxID  string        `json:"sandbox_id"`
	TemplateID string        `json:"template_id"`
	Kind       string        `json:"kind"`
	Status     string        `json:"status"`
	Name       string        `json:"name"`
	Bytes      int64         `json:"size_bytes"`
	Resources  resourcesBody `json:"resources"`
	CreatedAt  string        `json:"created_at"`
	ReadyAt    string        `json:"ready_at"`
}

type resourcesBody struct {
	VCPU      int   `json:"vcpu_count"`
	MemoryMiB int64 `json:"memory_mib"`
	DiskMiB   int64 `json:"disk_mib"`
}

func snapshotWire(sn *ringfence.Snapshot) snapshotBody {
	at := ringfence.FormatTime(sn.CreatedAt)
	return snapshotBody{
		ID: sn.ID, SandboxID: sn.SandboxID, TemplateID: sn.Template, Kind: "mem+fs", Status: "ready", Name: sn.Name, Bytes: sn.Bytes,
		Resources: resourcesBody{sn.Size.VCPU, sn.Size.MemoryMiB, sn.Size.DiskMiB}, CreatedAt: at, ReadyAt: at,
	}
}

func (c *call) snapshot() error {
	var in struct {
		Kind string `json:"kind"`
		Name string `json:"name"`
	}
	if err := dialect.Decode(c.w, c.r, c.MaxBody, &in); err != nil {
		return err
	}
	if in.Kind != "" && in.Kind != "mem+fs" {
		return notSupported("kind", "snapshots of the kind %q are not supported", cut(in.Kind)).WithHint("leave kind out: what is kept is memory and disk")
	}
	if _, err := c.living(); err != nil {
		return err
	}
	sn, err := c.Engine.Snapshot(c.r.Context(), c.who.Project, c.sandbox, in.Name)
	if err != nil {
		return err
	}
	return dialect.Reply(c.w, http.StatusCreated, snapshotWire(sn))
}

func (c *call) listSnapshots() error {
	query := c.r.URL.Query()
	limit, err := number(query, "limit", 1<<31, 0, 1<<31)
	if err != nil {
		return err
	}
	offset, err := number(query, "offset", 0, 0, 1<<31)
	if err != nil {
		return err
	}
	f := ringfence.SnapshotFilter{Project: c.who.Project, SandboxID: c.sandbox, Limit: page}
	out := []snapshotBody{}
	for n := 0; len(out) < limit; {
		found, err := c.Engine.ListSnapshots(c.r.Context(), f)
		if err != nil {
			return err
		}
		for _, sn := range found {
			if n++; n > offset && len(out) < limit {
				out = append(out, snapshotWire(sn))
			}
		}
		if len(found) < page {
			break
		}
		last := found[len(found)-1]
		f.Before = &ringfence.SandboxCursor{CreatedAt: last.CreatedAt, ID: last.ID}
	}
	return dialect.Reply(c.w, http.StatusOK, out)
}

func (c *call) getSnapshot() error {
	sn, err := c.Engine.GetSnapshot(c.r.Context(), c.who.Project, c.r.PathValue("snapshot"))
	if err != nil {
		return err
	}
	return dialect.Reply(c.w, http.StatusOK, snapshotWire(sn))
}

func (c *call) deleteSnapshot() error {
	if err := c.Engine.DeleteSnapshot(c.r.Context(), c.who.Project, c.r.PathValue("snapshot")); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

func (c *call) renameSnapshot() error {
	return notSupported("name", "a snapshot cannot be renamed").WithHint("give it its name when it is taken")
}
