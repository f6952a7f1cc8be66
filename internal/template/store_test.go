package template

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
)

// storeWith has a template for each image, named after it.
func storeWith(t *testing.T, templates ...ringfence.Template) Store {
	t.Helper()
	s := Store{Dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(s.Dir, "images"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tm := range templates {
		tm.BuiltAt = time.Date(2026, 11, 30, 1, 2, 3, 456789000, time.UTC)
		if err := s.write(tm, ""); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.ImagePath(tm.Image), []byte("image"), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestStoreLookup(t *testing.T) {
	s := storeWith(t,
		ringfence.Template{Name: "data", Aliases: []string{"me/data"}, Image: "aa", Recipe: "r1", User: "user", WorkDir: "/w",
			Env: map[string]string{"A": "b"}, Size: ringfence.Size{VCPU: 1, MemoryMiB: 256, DiskMiB: 512}},
		ringfence.Template{Name: "me.data", Aliases: []string{"data"}, Image: "bb"})
	got, err := s.Lookup("me/data")
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "data" || got.ImagePath != s.Dir+"/images/aa.erofs" || got.Env["A"] != "b" || got.Size.DiskMiB != 512 || got.BuiltAt.Nanosecond() != 456789000 {
		t.Errorf("got %+v", got)
	}
	if got, err := s.Lookup("data"); err != nil || got.Name != "data" {
		t.Errorf("a name must win over an alias: %+v, %v", got, err)
	}
	for _, bad := range []string{"", "..", "../etc/passwd", "/etc/passwd", "images", "a/b/c", "data.json", "DATA", "x\x00"} {
		if _, err := s.Lookup(bad); ringfence.CodeOf(err) != ringfence.CodeTemplateNotFound {
			t.Errorf("Lookup(%q): %v", bad, err)
		}
	}
}

func TestStoreNear(t *testing.T) {
	s := storeWith(t, ringfence.Template{Name: "data-tools", Aliases: []string{"team/data"}, Image: "aa"}, ringfence.Template{Name: "web", Image: "bb"})
	for name, want := range map[string][]string{
		"data-tool":  {"data-tools"},
		"dta-tools":  {"data-tools"},
		"data":       {"data-tools", "team/data"},
		"wev":        {"web"},
		"completely": {"data-tools", "web"},
	} {
		got := s.Near(name)
		for _, w := range want {
			if !slices.Contains(got, w) {
				t.Errorf("Near(%q) = %v, want %v in it", name, got, want)
				break
			}
		}
	}
	if _, err := s.Lookup("data-tool"); err == nil || !strings.Contains(err.Error(), "near names: data-tools") {
		t.Errorf("got %v", err)
	}
	if _, err := s.Lookup("code-interpreter-v1"); err == nil || !strings.Contains(err.Error(), "ringfence template build code-interpreter") {
		t.Errorf("built in but not built: %v", err)
	}
	if _, err := (Store{Dir: filepath.Join(s.Dir, "none")}).Lookup("x"); ringfence.CodeOf(err) != ringfence.CodeTemplateNotFound {
		t.Errorf("no directory: %v", err)
	}
}

func TestStoreSaysWhatIsDamaged(t *testing.T) {
	s := storeWith(t)
	for name, text := range map[string]string{"a": "{", "b": "{}", "c": `{"name":"other","image":"aa","built_at":"2026-11-30T00:00:00.000000Z"}`} {
		path := filepath.Join(s.Dir, name+".json")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Lookup(name); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestPrune(t *testing.T) {
	s := storeWith(t, ringfence.Template{Name: "a", Image: "aa"})
	for _, old := range []string{"bb", "cc"} {
		if err := os.WriteFile(s.ImagePath(old), nil, 0o444); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := s.Prune(func(image string) bool { return image == "bb" })
	if err != nil || !slices.Equal(removed, []string{"cc"}) {
		t.Errorf("removed %v, %v", removed, err)
	}
	for image, want := range map[string]bool{"aa": true, "bb": true, "cc": false} {
		if _, err := os.Stat(s.ImagePath(image)); (err == nil) != want {
			t.Errorf("image %s: %v", image, err)
		}
	}
	if removed, err := (Store{Dir: filepath.Join(s.Dir, "none")}).Prune(func(string) bool { return false }); err != nil || removed != nil {
		t.Errorf("no directory: %v, %v", removed, err)
	}
}

// TestLookupTakesNoPath: the name comes from callers of the API, who must not learn
// which directories the host has, nor what a recipe in one of them says.
func TestLookupTakesNoPath(t *testing.T) {
	s := storeWith(t)
	dir := t.TempDir()
	recipe := "name = \"mine\"\nsummary = \"x\"\nsuite = \"trixie\"\n"
	if err := os.WriteFile(filepath.Join(dir, "template.toml"), []byte(recipe), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{dir, "/etc", ".", "..", "./x", "../../etc/passwd"} {
		_, err := s.Lookup(name)
		if ringfence.CodeOf(err) != ringfence.CodeTemplateNotFound {
			t.Errorf("%s: %v", name, err)
		}
		if strings.Contains(err.Error(), "mine") || strings.Contains(err.Error(), "built in but") {
			t.Errorf("%s was read as a path: %v", name, err)
		}
	}
}
