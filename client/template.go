package client

import (
	"context"
	"net/http"
	"time"
)

// Template is a root file system that sandboxes are made from.
type Template struct {
	Name      string
	Aliases   []string // other names that Create accepts
	Image     string   // SHA-256 of its image, in hex
	Recipe    string   // SHA-256 of the recipe that made it, in hex
	User      string   // default user of commands
	WorkDir   string   // default working directory of commands
	VCPU      int      // default size: cores
	MemoryMiB int64    // default size
	DiskMiB   int64    // default size
	BuiltAt   time.Time
}

type wireTemplate struct {
	Name      string   `json:"name"`
	Aliases   []string `json:"aliases"`
	Image     string   `json:"image"`
	Recipe    string   `json:"recipe"`
	User      string   `json:"user"`
	WorkDir   string   `json:"work_dir"`
	VCPU      int      `json:"vcpu"`
	MemoryMiB int64    `json:"memory_mib"`
	DiskMiB   int64    `json:"disk_mib"`
	BuiltAt   wireTime `json:"built_at"`
}

func (w wireTemplate) template() Template {
	return Template{Name: w.Name, Aliases: w.Aliases, Image: w.Image, Recipe: w.Recipe, User: w.User, WorkDir: w.WorkDir,
		VCPU: w.VCPU, MemoryMiB: w.MemoryMiB, DiskMiB: w.DiskMiB, BuiltAt: w.BuiltAt.Time}
}

// Templates lists the templates that the server has.
func (c *Client) Templates(ctx context.Context) ([]Template, error) {
	var w struct {
		Templates []wireTemplate `json:"templates"`
	}
	if err := c.call(ctx, request{method: http.MethodGet, path: "/v1/templates", idempotent: true}, &w); err != nil {
		return nil, err
	}
	templates := make([]Template, len(w.Templates))
	for i := range w.Templates {
		templates[i] = w.Templates[i].template()
	}
	return templates, nil
}

// Template returns a template by its name or by an alias. Errors: template_not_found.
func (c *Client) Template(ctx context.Context, name string) (Template, error) {
	var w wireTemplate
	err := c.call(ctx, request{method: http.MethodGet, path: "/v1/templates/" + escape(name), idempotent: true}, &w)
	return w.template(), err
}
