package api

import (
	"net/http"

	"ringfence.dev/ringfence"
)

type templateBody struct {
	Name      string   `json:"name"`
	Aliases   []string `json:"aliases"`
	Image     string   `json:"image"`
	Recipe    string   `json:"recipe"`
	User      string   `json:"user"`
	WorkDir   string   `json:"work_dir"`
	VCPU      int      `json:"vcpu"`
	MemoryMiB int64    `json:"memory_mib"`
	DiskMiB   int64    `json:"disk_mib"`
	BuiltAt   *string  `json:"built_at"`
}

func templateWire(t ringfence.Template) templateBody {
	return templateBody{
		Name: t.Name, Aliases: list(t.Aliases), Image: t.Image, Recipe: t.Recipe, User: t.User, WorkDir: t.WorkDir,
		VCPU: t.Size.VCPU, MemoryMiB: t.Size.MemoryMiB, DiskMiB: t.Size.DiskMiB, BuiltAt: wireTime(t.BuiltAt),
	}
}

func (c *call) listTemplates() error {
	all, err := c.Engine.Templates.List()
	if err != nil {
		return err
	}
	out := struct {
		Templates []templateBody `json:"templates"`
	}{[]templateBody{}}
	for _, t := range all {
		out.Templates = append(out.Templates, templateWire(t))
	}
	return c.reply(http.StatusOK, out)
}

func (c *call) getTemplate() error {
	t, err := c.Engine.Template(c.r.PathValue("name"))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, templateWire(t))
}
