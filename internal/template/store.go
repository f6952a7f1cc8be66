package template

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"ringfence.dev/ringfence"
)

// Store is a template directory: a record per template, and images/ with the
// images that the records name by their hash. It may be read while a build writes.
type Store struct {
	Dir string // absolute
}

// record is a template on disk.
type record struct {
	Name      string            `json:"name"`
	Aliases   []string          `json:"aliases"`
	Summary   string            `json:"summary"`
	Image     string            `json:"image"`
	Recipe    string            `json:"recipe"`
	User      string            `json:"user"`
	WorkDir   string            `json:"work_dir"`
	Ready     string            `json:"ready,omitempty"`
	Env       map[string]string `json:"env"`
	VCPU      int               `json:"vcpu"`
	MemoryMiB int64             `json:"memory_mib"`
	DiskMiB   int64             `json:"disk_mib"`
	BuiltAt   string            `json:"built_at"`
}

// ImagePath returns where the image with that hash is.
func (s Store) ImagePath(image string) string {
	return filepath.Join(s.Dir, "images", image+".erofs")
}

// Lookup returns the template with that name or alias. A name wins over an alias.
// The error has CodeTemplateNotFound when there is none, with near names as its hint.
func (s Store) Lookup(name string) (ringfence.Template, error) {
	if nameRule.MatchString(name) {
		t, err := s.read(name + ".json")
		if !errors.Is(err, fs.ErrNotExist) {
			return t, err
		}
	}
	all, err := s.List()
	if err != nil {
		return ringfence.Template{}, err
	}
	for _, t := range all {
		if slices.Contains(t.Aliases, name) {
			return t, nil
		}
	}
	return ringfence.Template{}, s.notFound(name)
}

func (s Store) notFound(name string) error {
	e := ringfence.Errorf(ringfence.CodeTemplateNotFound, "there is no template %q", name)
	near := s.Near(name)
	// The name comes from a caller of the API: it is never taken for a path.
	if r, _, err := findBuiltIn(name); err == nil && r != nil {
		return e.WithHint("it is built in but not built on this host yet: run `ringfence template build %s`", r.Name)
	}
	if len(near) == 0 {
		return e.WithHint("no template is built yet: run `ringfence template build code-interpreter`")
	}
	return e.WithHint("near names: %s", strings.Join(near, ", "))
}

// List returns all templates, sorted by name. A directory that does not exist has none.
func (s Store) List() ([]ringfence.Template, error) {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list the templates: %w", err)
	}
	var all []ringfence.Template
	for _, e := range entries {
		if e.IsDir() || !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		t, err := s.read(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // replaced or removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// Near returns at most five names and aliases that resemble name, nearest first;
// all templates' names when none does.
func (s Store) Near(name string) []string {
	all, err := s.List()
	if err != nil {
		return nil
	}
	type scored struct {
		name string
		d    int
	}
	var near []scored
	var names []string
	for _, t := range all {
		names = append(names, t.Name)
		for _, n := range append([]string{t.Name}, t.Aliases...) {
			d := distance(name, n)
			if d <= max(2, len(n)/3) || len(name) >= 3 && strings.Contains(n, name) {
				near = append(near, scored{n, d})
			}
		}
	}
	sort.SliceStable(near, func(i, j int) bool { return near[i].d < near[j].d })
	if len(near) == 0 {
		return names[:min(len(names), 5)]
	}
	var out []string
	for _, n := range near[:min(len(near), 5)] {
		out = append(out, n.name)
	}
	return out
}

// distance is the number of single-character edits between a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

func (s Store) read(file string) (ringfence.Template, error) {
	path := filepath.Join(s.Dir, file)
	data, err := os.ReadFile(path)
	if err != nil {
		return ringfence.Template{}, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return ringfence.Template{}, fmt.Errorf("the template record %s is damaged: %w; build the template again", path, err)
	}
	built, err := time.Parse(ringfence.TimeLayout, r.BuiltAt)
	if err != nil || r.Image == "" || r.Name+".json" != file {
		return ringfence.Template{}, fmt.Errorf("the template record %s is damaged; build the template again", path)
	}
	return ringfence.Template{
		Name: r.Name, Aliases: r.Aliases, Image: r.Image, ImagePath: s.ImagePath(r.Image),
		Env: r.Env, User: r.User, WorkDir: r.WorkDir, Ready: r.Ready, Recipe: r.Recipe, BuiltAt: built,
		Size: ringfence.Size{VCPU: r.VCPU, MemoryMiB: r.MemoryMiB, DiskMiB: r.DiskMiB},
	}, nil
}

// write puts the record of t in place, whole or not at all.
func (s Store) write(t ringfence.Template, summary string) error {
	data, err := json.MarshalIndent(record{
		Name: t.Name, Aliases: append([]string{}, t.Aliases...), Summary: summary, Image: t.Image, Recipe: t.Recipe,
		User: t.User, WorkDir: t.WorkDir, Ready: t.Ready, Env: t.Env, VCPU: t.Size.VCPU, MemoryMiB: t.Size.MemoryMiB, DiskMiB: t.Size.DiskMiB,
		BuiltAt: ringfence.FormatTime(t.BuiltAt),
	}, "", "  ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(s.Dir, ".record-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(append(data, '\n'))
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close())
	if err != nil {
		return fmt.Errorf("cannot write the record of template %q: %w", t.Name, err)
	}
	if err := os.Rename(tmp.Name(), filepath.Join(s.Dir, t.Name+".json")); err != nil {
		return err
	}
	return syncDir(s.Dir)
}

// syncDir makes renames in dir survive a power cut.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Prune removes the images that no record names and that inUse does not report,
// and returns the hashes of what it removed. It is never done by itself: only the
// caller knows which sandboxes and snapshots still name an image.
func (s Store) Prune(inUse func(image string) bool) ([]string, error) {
	unlock, err := lockFile(filepath.Join(s.Dir, "images", ".lock"), true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	all, err := s.List()
	if err != nil {
		return nil, err
	}
	named := map[string]bool{}
	for _, t := range all {
		named[t.Image] = true
	}
	entries, err := os.ReadDir(filepath.Join(s.Dir, "images"))
	if err != nil {
		return nil, fmt.Errorf("cannot list the images: %w", err)
	}
	var removed []string
	for _, e := range entries {
		image, ok := strings.CutSuffix(e.Name(), ".erofs")
		if !ok || named[image] || inUse(image) {
			continue
		}
		if err := os.Remove(s.ImagePath(image)); err != nil {
			return removed, err
		}
		removed = append(removed, image)
	}
	return removed, nil
}
