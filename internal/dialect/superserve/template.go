package superserve

import (
	"net/http"
	"strings"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/dialect"
)

// namespace is what the names of built-in templates begin with.
const namespace = "superserve/"

// template finds a template by its name here or in the original.
func (c *call) template(name string) (ringfence.Template, error) {
	if name == "" {
		name = "base"
	}
	t, err := c.Engine.Template(name)
	if short, ok := strings.CutPrefix(name, namespace); ok && ringfence.CodeOf(err) == ringfence.CodeTemplateNotFound {
		if other, serr := c.Engine.Template(short); serr == nil {
			return other, nil
		}
	}
	return t, err
}

type templateBody struct {
	ID        string `json:"id"`
	TeamID    string `json:"team_id"`
	Name      string `json:"name"`
	Status    string `json:"status"`
	VCPU      int    `json:"vcpu"`
	MemoryMiB int64  `json:"memory_mib"`
	DiskMiB   int64  `json:"disk_mib"`
	CreatedAt string `json:"created_at"`
	BuiltAt   string `json:"built_at"`
}

func templateWire(t ringfence.Template) templateBody {
	size := t.Size
	if size == (ringfence.Size{}) {
		size = ringfence.Size{VCPU: ringfence.DefaultVCPU, MemoryMiB: ringfence.DefaultMemoryMiB, DiskMiB: ringfence.DefaultDiskMiB}
	}
	built := ringfence.FormatTime(t.BuiltAt)
	if built == "" { // the SDKs insist on one
		built = ringfence.FormatTime(time.Unix(0, 0))
	}
	return templateBody{
		ID: t.Name, TeamID: "default", Name: namespace + t.Name, Status: "ready", VCPU: size.VCPU, MemoryMiB: size.MemoryMiB, DiskMiB: size.DiskMiB,
		CreatedAt: built, BuiltAt: built,
	}
}

func (c *call) listTemplates() error {
	all, err := c.Engine.Templates.List()
	if err != nil {
		return err
	}
	prefix := c.r.URL.Query().Get("name_prefix")
	out := []templateBody{}
	for _, t := range all {
		if body := templateWire(t); strings.HasPrefix(body.Name, prefix) {
			out = append(out, body)
		}
	}
	return dialect.Reply(c.w, http.StatusOK, out)
}

// getTemplate serves a template, whose name may hold a slash, and its builds.
func (c *call) getTemplate() error {
	name := c.r.PathValue("name")
	rest := ""
	if i := strings.Index(name, "/builds"); i >= 0 {
		name, rest = name[:i], name[i+len("/builds"):]
	}
	t, err := c.template(name)
	switch {
	case err != nil:
		return err
	case strings.HasSuffix(c.r.PathValue("name"), "/builds"):
		return c.none()
	case rest != "":
		return ringfence.Errorf(ringfence.CodeNotFound, "the template %s has no builds here", t.Name)
	}
	return dialect.Reply(c.w, http.StatusOK, templateWire(t))
}

func (c *call) noTemplates() error {
	return notSupported("", "templates cannot be made, built or deleted through the API yet").
		WithHint("use one of those that GET /templates lists, or build one on the server: ringfence template build ./DIRECTORY")
}

// secretsMissing refuses secrets by name.
func secretsMissing(field string) error {
	return notSupported(field, "secrets are not supported yet, and %s would not be protected", field).
		WithHint("pass what may be seen in the sandbox as env_vars, and keep the rest out of it")
}

func (c *call) noSecrets() error { return secretsMissing("secrets") }

func (c *call) noSecret() error {
	return ringfence.Errorf(ringfence.CodeNotFound, "there is no such secret: secrets are not supported yet")
}

func (c *call) noBinding() error {
	if _, err := c.living(); err != nil {
		return err
	}
	return ringfence.Errorf(ringfence.CodeNotFound, "no secret is bound to %q: secrets are not supported yet", cut(c.r.PathValue("key")))
}
