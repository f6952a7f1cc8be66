package template

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ringfence.dev/ringfence"
)

// recipeDir writes a recipe with the files and returns its directory.
func recipeDir(t *testing.T, toml string, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if files == nil {
		files = map[string]string{}
	}
	files[recipeFile] = toml
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const onTiny = "name = 'x'\n[base]\ntemplate = 'tiny'\n"

const onBase = "name = 'x'\n[base]\ntemplate = 'base'\n"

func TestBuiltInRecipes(t *testing.T) {
	recipes, err := BuiltIn()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range recipes {
		names = append(names, r.Name)
	}
	if !slices.Equal(names, []string{"base", "code-interpreter"}) {
		t.Errorf("built in are %v", names)
	}
	for _, ref := range []string{"code-interpreter", "superserve/code-interpreter", "code-interpreter-v1"} {
		r, err := Load(ref)
		if err != nil || r.Name != "code-interpreter" || r.locked() < 100 {
			t.Errorf("Load(%q): %v, %v", ref, r, err)
		}
	}
}

func TestBadRecipes(t *testing.T) {
	hash := " --hash=sha256:" + strings.Repeat("0", 64) + "\n"
	for _, c := range []struct {
		name, toml string
		files      map[string]string
		want       string
	}{
		{"unknown key", onBase + "[debian]\npackage = ['git']\n", nil, "unknown key debian.package (line 5)"},
		{"unknown key in a step", onBase + "[[steps]]\nrum = 'a.sh'\n", nil, "unknown key steps.rum (line 5)"},
		{"syntax", "name = \n", nil, recipeFile + ":1:"},
		{"type", "name = 3\n", nil, recipeFile + ":1:"},
		{"no name", "[base]\ndebian = 'trixie'\n", nil, `name "" must be`},
		{"name with a slash", "name = 'a/b'\n[base]\ndebian = 'trixie'\n", nil, `name "a/b" must be`},
		{"alias", "aliases = ['a/b/c']\n" + onBase, nil, `alias "a/b/c"`},
		{"no base", "name = 'x'\n", nil, "exactly one of debian and template"},
		{"two bases", onBase + "debian = 'trixie'\n", nil, "exactly one of debian and template"},
		{"suite", "name = 'x'\n[base]\ndebian = '--help'\n", nil, `base.debian "--help"`},
		{"own base", "name = 'x'\n[base]\ntemplate = 'x'\n", nil, "is the template itself"},
		{"user", "user = 'A b'\n" + onBase, nil, `user "A b"`},
		{"work_dir", "work_dir = 'home'\n" + onBase, nil, `work_dir "home"`},
		{"memory", onBase + "[size]\nmemory_mib = 1\n", nil, "size.memory_mib must be 128"},
		{"negative", onBase + "[size]\nvcpu = -1\n", nil, "must not be negative"},
		{"env", onBase + "[env]\n'A=B' = 'c'\n", nil, `env "A=B"`},
		{"package", onBase + "[debian]\npackages = ['-o', 'git']\n", nil, `"-o" is not the name of a package`},
		{"pattern", onBase + "[debian]\nleave_out = ['usr']\n", nil, `path pattern "usr"`},
		{"step of nothing", onBase + "[[steps]]\nname = 'n'\n", nil, "step 1 (n): exactly one of run and copy"},
		{"step of both", onBase + "[[steps]]\nrun = 'a'\ncopy = 'b'\n", nil, "step 1: exactly one of run and copy"},
		{"missing script", onBase + "[[steps]]\nrun = 'a.sh'\n", nil, `there is no file "a.sh"`},
		{"script outside", onBase + "[[steps]]\nrun = '../a.sh'\n", nil, `there is no file "../a.sh"`},
		{"script is a directory", onBase + "[[steps]]\nrun = 'd'\n", map[string]string{"d/f": ""}, `"d" is not a file`},
		{"copy to nowhere", onBase + "[[steps]]\ncopy = 'f'\n", map[string]string{"f": ""}, `to "" must be an absolute`},
		{"copy upwards", onBase + "[[steps]]\ncopy = 'f'\nto = '/a/../../b'\n", map[string]string{"f": ""}, "must be an absolute, clean path"},
		{"mode", onBase + "[[steps]]\ncopy = 'f'\nto = '/f'\nmode = '9'\n", map[string]string{"f": ""}, `mode "9" must be octal`},
		{"copy with user", onBase + "[[steps]]\ncopy = 'f'\nto = '/f'\nuser = 'a'\n", map[string]string{"f": ""}, "user belongs to run"},
		{"run with owner", onBase + "[[steps]]\nrun = 'f'\nowner = 'a'\n", map[string]string{"f": ""}, "belong to copy"},
		{"no lock", onBase + "[python]\nlock = 'r.lock'\n", nil, `there is no file "r.lock"`},
		{"lock without version", onBase + "[python]\nlock = 'r.lock'\n", map[string]string{"r.lock": "numpy" + hash}, `"numpy" has no exact version`},
		{"lock without hash", onBase + "[python]\nlock = 'r.lock'\n", map[string]string{"r.lock": "numpy==1.0\n"}, `"numpy==1.0" has no hash`},
		{"lock with option", onBase + "[python]\nlock = 'r.lock'\n", map[string]string{"r.lock": "--index-url x\n"}, `option "--index-url"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Load(recipeDir(t, c.toml, c.files))
			var e *ringfence.Error
			if !errors.As(err, &e) || e.Code != ringfence.CodeInvalidArgument || !strings.Contains(e.Message, c.want) {
				t.Errorf("got %v, want invalid_argument with %q", err, c.want)
			}
		})
	}
}

func TestLoadOfUnknown(t *testing.T) {
	_, err := Load("code-interpeter")
	if ringfence.CodeOf(err) != ringfence.CodeTemplateNotFound || !strings.Contains(err.Error(), "base, code-interpreter") {
		t.Errorf("unknown name: %v", err)
	}
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.Mkdir("mine", 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Load("mine"); err == nil || !strings.Contains(err.Error(), "write ./mine") {
		t.Errorf("directory without ./: %v", err)
	}
	if _, err := Load("./mine"); err == nil || !strings.Contains(err.Error(), "holds no template.toml") {
		t.Errorf("directory without a recipe: %v", err)
	}
	if _, err := Load("./nowhere"); err == nil || !strings.Contains(err.Error(), "holds no template.toml") {
		t.Errorf("no directory: %v", err)
	}
}

func TestKeyFollowsContent(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	key := func(toml string, files map[string]string) string {
		t.Helper()
		r, err := Load(recipeDir(t, toml, files))
		if err != nil {
			t.Fatal(err)
		}
		k, err := s.Key(r)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	step := onBase + "[[steps]]\nrun = 'a.sh'\n"
	first := key(step, map[string]string{"a.sh": "true"})
	if again := key(step, map[string]string{"a.sh": "true"}); again != first {
		t.Error("the same files gave another key")
	}
	for name, other := range map[string]string{
		"script":      key(step, map[string]string{"a.sh": "false"}),
		"toml":        key(step+"# more\n", map[string]string{"a.sh": "true"}),
		"file beside": key(step, map[string]string{"a.sh": "true", "b": ""}),
		"name":        key(step, map[string]string{"a.sh": "tru", "e": ""}),
		"base":        key(strings.Replace(step, "'base'", "'code-interpreter'", 1), map[string]string{"a.sh": "true"}),
	} {
		if other == first {
			t.Errorf("another %s gave the same key", name)
		}
	}
}

func TestKeyOfUnknownBase(t *testing.T) {
	r, err := Load(recipeDir(t, "name = 'x'\n[base]\ntemplate = 'nothing'\n", nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (Store{Dir: t.TempDir()}).Key(r); ringfence.CodeOf(err) != ringfence.CodeTemplateNotFound || !strings.Contains(err.Error(), `base.template "nothing"`) {
		t.Errorf("got %v", err)
	}
}
