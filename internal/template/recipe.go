package template

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/templates"
)

// recipeFile is the name of the one file that every recipe has.
const recipeFile = "template.toml"

// maxReady bounds the ready command, in bytes.
const maxReady = 4096

// Recipe is how a template is made, as template.toml says it, with the files that
// lie beside it.
type Recipe struct {
	Name    string            `toml:"name"`
	Aliases []string          `toml:"aliases"`
	Summary string            `toml:"summary"`
	User    string            `toml:"user"`     // empty: the base's, or root
	WorkDir string            `toml:"work_dir"` // empty: the base's, or /
	Ready   string            `toml:"ready"`    // shell command; empty: the base's, or none
	Base    Base              `toml:"base"`
	Size    RecipeSize        `toml:"size"`
	Env     map[string]string `toml:"env"` // added to the base's
	Debian  Debian            `toml:"debian"`
	Python  Python            `toml:"python"`
	Steps   []Step            `toml:"steps"`

	files fs.FS // the recipe's directory
}

// Base is what a recipe starts from: exactly one of its fields is set.
type Base struct {
	Debian   string `toml:"debian"`   // a suite, such as "trixie"
	Template string `toml:"template"` // a template of this host, or one of the binary's own
}

// RecipeSize is the size of sandboxes that ask for none; 0 is the base's or the default.
type RecipeSize struct {
	VCPU      int   `toml:"vcpu"`
	MemoryMiB int64 `toml:"memory_mib"`
	DiskMiB   int64 `toml:"disk_mib"`
}

// Debian says which packages are installed, and which of their files are not.
type Debian struct {
	Packages []string `toml:"packages"`
	LeaveOut []string `toml:"leave_out"` // dpkg path patterns
	Keep     []string `toml:"keep"`      // exceptions from LeaveOut
}

// Python names the lock file of what pip installs for all users.
type Python struct {
	Lock string `toml:"lock"` // requirements with a version and hashes each
}

// Step is one action, after the packages: exactly one of Run and Copy is set.
type Step struct {
	Name  string `toml:"name"`
	Run   string `toml:"run"`   // a script of the recipe, run in the new root by sh -eu, or by python3 if it ends in .py
	User  string `toml:"user"`  // who runs it; empty: root
	Copy  string `toml:"copy"`  // a file or directory of the recipe
	To    string `toml:"to"`    // where it goes, absolute
	Mode  string `toml:"mode"`  // of copied files, octal; empty: 0644
	Owner string `toml:"owner"` // of what is copied; empty: root
}

var (
	nameRule    = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	aliasRule   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}(/[a-z0-9][a-z0-9._-]{0,62})?$`)
	suiteRule   = regexp.MustCompile(`^[a-z][a-z0-9-]{1,30}$`)
	packageRule = regexp.MustCompile(`^[a-z0-9][a-z0-9.+-]+(=[A-Za-z0-9.+~:-]+)?$`)
	userRule    = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
	envRule     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	patternRule = regexp.MustCompile(`^/[^\s"]+$`)
)

// Load finds the recipe that ref names: a directory when ref holds a path
// separator or is ".", else one of the binary's own by name or alias.
func Load(ref string) (*Recipe, error) {
	if ref == "." || ref == ".." || strings.HasPrefix(ref, "./") || strings.HasPrefix(ref, "../") || filepath.IsAbs(ref) {
		return loadDir(ref)
	}
	r, names, err := findBuiltIn(ref)
	if r != nil || err != nil {
		return r, err
	}
	if info, err := os.Stat(ref); err == nil && info.IsDir() {
		return nil, ringfence.Errorf(ringfence.CodeTemplateNotFound, "there is no built-in template %q", ref).
			WithHint("for the recipe in that directory, write ./%s", ref)
	}
	return nil, ringfence.Errorf(ringfence.CodeTemplateNotFound, "there is no built-in template %q", ref).
		WithHint("built in are %s; a recipe of your own is given as a path, such as ./%s", strings.Join(names, ", "), path.Base(ref))
}

// findBuiltIn returns the recipe in the binary of that name or alias, nil when
// there is none, and the names of all. It never looks at the file system.
func findBuiltIn(name string) (*Recipe, []string, error) {
	builtin, err := BuiltIn()
	if err != nil {
		return nil, nil, err
	}
	var names []string
	for _, r := range builtin {
		if r.Name == name || slices.Contains(r.Aliases, name) {
			return r, nil, nil
		}
		names = append(names, r.Name)
	}
	return nil, names, nil
}

// BuiltIn returns the recipes in the binary, sorted by name.
func BuiltIn() ([]*Recipe, error) {
	entries, err := fs.ReadDir(templates.FS, ".")
	if err != nil {
		return nil, fmt.Errorf("cannot read the built-in recipes: %w", err)
	}
	var recipes []*Recipe
	for _, e := range entries {
		sub, err := fs.Sub(templates.FS, e.Name())
		if err != nil {
			return nil, err
		}
		r, err := parse(sub, "built-in template "+e.Name())
		if err != nil {
			return nil, err
		}
		recipes = append(recipes, r)
	}
	return recipes, nil
}

func loadDir(dir string) (*Recipe, error) {
	if _, err := os.Stat(filepath.Join(dir, recipeFile)); errors.Is(err, fs.ErrNotExist) {
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "%s holds no %s", dir, recipeFile).
			WithHint("a recipe is a directory with a %s; docs/templates.md says what is in it", recipeFile)
	}
	return parse(os.DirFS(dir), dir)
}

// parse reads and checks the recipe in files. Where names it in errors.
func parse(files fs.FS, where string) (*Recipe, error) {
	data, err := fs.ReadFile(files, recipeFile)
	if err != nil {
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "cannot read the recipe in %s: %w", where, err)
	}
	r := &Recipe{files: files}
	dec := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields()
	if err := dec.Decode(r); err != nil {
		return nil, tomlError(where, err)
	}
	if problems := r.problems(); len(problems) > 0 {
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "the recipe in %s cannot be built: %s", where, strings.Join(problems, "; ")).
			WithHint("docs/templates.md lists every field")
	}
	return r, nil
}

// tomlError says which key and line are at fault; the library's own text is a
// drawing over several lines.
func tomlError(where string, err error) error {
	e := ringfence.Errorf(ringfence.CodeInvalidArgument, "%s/%s: %v", where, recipeFile, err)
	var strict *toml.StrictMissingError
	var decode *toml.DecodeError
	switch {
	case errors.As(err, &strict):
		var keys []string
		for _, d := range strict.Errors {
			line, _ := d.Position()
			keys = append(keys, fmt.Sprintf("%s (line %d)", strings.Join(d.Key(), "."), line))
		}
		e.Message = fmt.Sprintf("%s/%s: unknown key %s", where, recipeFile, strings.Join(keys, ", "))
		e.Hint = "docs/templates.md lists every field"
	case errors.As(err, &decode):
		line, column := decode.Position()
		e.Message = fmt.Sprintf("%s/%s:%d:%d: %s", where, recipeFile, line, column, strings.TrimPrefix(decode.Error(), "toml: "))
	}
	return e
}

// problems returns what is wrong with r, in the order of the file.
func (r *Recipe) problems() []string {
	var out []string
	bad := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }

	if !nameRule.MatchString(r.Name) {
		bad("name %q must be 1 to 63 of a-z, 0-9, '.', '_', '-' and start with a letter or digit", r.Name)
	}
	for _, a := range r.Aliases {
		if !aliasRule.MatchString(a) {
			bad("alias %q must be spelled as a name, or as two names with a slash between", a)
		}
	}
	if (r.Base.Debian == "") == (r.Base.Template == "") {
		bad("[base] must have exactly one of debian and template")
	}
	if r.Base.Debian != "" && !suiteRule.MatchString(r.Base.Debian) {
		bad("base.debian %q is not the name of a Debian suite", r.Base.Debian)
	}
	if r.Base.Template == r.Name || slices.Contains(r.Aliases, r.Base.Template) && r.Base.Template != "" {
		bad("base.template %q is the template itself", r.Base.Template)
	}
	if r.User != "" && !userRule.MatchString(r.User) {
		bad("user %q is not a user name", r.User)
	}
	if r.WorkDir != "" && !cleanAbs(r.WorkDir) {
		bad("work_dir %q must be an absolute, clean path", r.WorkDir)
	}
	if len(r.Ready) > maxReady || strings.ContainsRune(r.Ready, 0) {
		bad("ready must be a shell command of at most %d bytes", maxReady)
	}
	if r.Size.VCPU < 0 || r.Size.MemoryMiB < 0 || r.Size.DiskMiB < 0 {
		bad("[size] must not be negative")
	}
	if r.Size.MemoryMiB > 0 && r.Size.MemoryMiB < ringfence.MinMemoryMiB {
		bad("size.memory_mib must be %d or more", ringfence.MinMemoryMiB)
	}
	if r.Size.DiskMiB > 0 && r.Size.DiskMiB < ringfence.MinDiskMiB {
		bad("size.disk_mib must be %d or more", ringfence.MinDiskMiB)
	}
	for _, k := range slices.Sorted(maps.Keys(r.Env)) {
		if !envRule.MatchString(k) || strings.ContainsRune(r.Env[k], 0) {
			bad("env %q is not a variable that a program can be given", k)
		}
	}
	for _, p := range r.Debian.Packages {
		if !packageRule.MatchString(p) {
			bad("debian.packages: %q is not the name of a package", p)
		}
	}
	for _, p := range slices.Concat(r.Debian.LeaveOut, r.Debian.Keep) {
		if !patternRule.MatchString(p) {
			bad("debian: path pattern %q must be absolute and without spaces", p)
		}
	}
	if r.Python.Lock != "" {
		out = append(out, r.lockProblems()...)
	}
	for i, s := range r.Steps {
		for _, p := range r.stepProblems(s) {
			label := strconv.Itoa(i + 1)
			if s.Name != "" {
				label += " (" + s.Name + ")"
			}
			bad("step %s: %s", label, p)
		}
	}
	return out
}

func (r *Recipe) stepProblems(s Step) []string {
	var out []string
	if (s.Run == "") == (s.Copy == "") {
		return []string{"exactly one of run and copy must be set"}
	}
	file := s.Run + s.Copy
	info, err := fs.Stat(r.files, path.Clean(file))
	if err != nil {
		out = append(out, fmt.Sprintf("there is no file %q beside %s", file, recipeFile))
	} else if s.Run != "" && !info.Mode().IsRegular() {
		out = append(out, fmt.Sprintf("%q is not a file", file))
	}
	if s.Run != "" && (s.To != "" || s.Mode != "" || s.Owner != "") {
		out = append(out, "to, mode and owner belong to copy")
	}
	if s.Copy != "" && s.User != "" {
		out = append(out, "user belongs to run; copy has owner")
	}
	if s.Copy != "" && !cleanAbs(s.To) {
		out = append(out, fmt.Sprintf("to %q must be an absolute, clean path", s.To))
	}
	for _, u := range []string{s.User, s.Owner} {
		if u != "" && !userRule.MatchString(u) {
			out = append(out, fmt.Sprintf("%q is not a user name", u))
		}
	}
	if s.Mode != "" {
		if m, err := strconv.ParseUint(s.Mode, 8, 32); err != nil || m > 0o7777 {
			out = append(out, fmt.Sprintf("mode %q must be octal, such as 0755", s.Mode))
		}
	}
	return out
}

// lockProblems refuses a lock file that pip would refuse minutes later.
func (r *Recipe) lockProblems() []string {
	data, err := fs.ReadFile(r.files, path.Clean(r.Python.Lock))
	if err != nil {
		return []string{fmt.Sprintf("python.lock: there is no file %q beside %s", r.Python.Lock, recipeFile)}
	}
	var out []string
	text := strings.ReplaceAll(string(data), "\\\n", " ")
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, _, _ := strings.Cut(line, " ")
		switch {
		case strings.HasPrefix(line, "-"):
			out = append(out, fmt.Sprintf("python.lock: option %q does not belong in a lock file", name))
		case !strings.Contains(name, "=="):
			out = append(out, fmt.Sprintf("python.lock: %q has no exact version", name))
		case !strings.Contains(line, "--hash=sha256:"):
			out = append(out, fmt.Sprintf("python.lock: %q has no hash", name))
		}
	}
	return out
}

// locked returns how many libraries the lock file names.
func (r *Recipe) locked() int {
	data, _ := fs.ReadFile(r.files, path.Clean(r.Python.Lock))
	n := 0
	for line := range strings.Lines(string(data)) {
		if c := line[0]; c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			n++
		}
	}
	return n
}

func cleanAbs(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && !strings.ContainsAny(p, "\x00\n")
}
