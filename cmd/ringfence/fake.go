package main

import (
	"slices"
	"strings"

	"ringfence.dev/ringfence"
)

// fakeTemplates are the built-in templates by name, for the fake driver, which
// looks at no image.
type fakeTemplates struct{}

func (fakeTemplates) List() ([]ringfence.Template, error) {
	size := ringfence.Size{VCPU: ringfence.DefaultVCPU, MemoryMiB: ringfence.DefaultMemoryMiB, DiskMiB: ringfence.DefaultDiskMiB}
	none := strings.Repeat("0", 64)
	return []ringfence.Template{
		{Name: "base", Image: none, Recipe: none, ImagePath: "/nowhere/base.erofs", User: "root", WorkDir: "/", Size: size},
		{Name: "code-interpreter", Aliases: []string{"superserve/code-interpreter", "code-interpreter-v1"}, Image: none, Recipe: none,
			ImagePath: "/nowhere/code-interpreter.erofs", User: "root", WorkDir: "/home/user", Size: size},
	}, nil
}

func (f fakeTemplates) Lookup(name string) (ringfence.Template, error) {
	all, err := f.List()
	for _, t := range all {
		if t.Name == name || slices.Contains(t.Aliases, name) {
			return t, err
		}
	}
	return ringfence.Template{}, ringfence.Errorf(ringfence.CodeTemplateNotFound, "there is no template %q", name).
		WithHint("near names: base, code-interpreter")
}
