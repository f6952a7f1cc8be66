package ringfence_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"testing"
)

const module = "ringfence.dev/ringfence"

// goFile is one Go source file of the repository, parsed as far as its imports.
type goFile struct {
	path    string // relative, slashes
	dir     string
	pkg     string
	doc     bool // has a package comment
	test    bool
	lines   int
	imports []string
}

// sources returns all Go files of the repository.
func sources(t *testing.T) []goFile {
	t.Helper()
	var files []goFile
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if p != "." && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		src, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, src, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		file := goFile{
			path: filepath.ToSlash(p), dir: filepath.ToSlash(filepath.Dir(p)), pkg: f.Name.Name,
			doc: f.Doc != nil, test: strings.HasSuffix(name, "_test.go"), lines: strings.Count(string(src), "\n"),
		}
		for _, imp := range f.Imports {
			file.imports = append(file.imports, strings.Trim(imp.Path.Value, `"`))
		}
		files = append(files, file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("found only %d Go files: the walk is broken", len(files))
	}
	return files
}

// allowedEdges is the import rule: what each package of ours may import of ours,
// beside the root package, which everybody may. "*" as a suffix stands for a tree.
// A row whose package is gone fails, so that the table stays true.
var allowedEdges = map[string][]string{
	".":                           {},
	"internal/guestproto":         {},
	"internal/guest":              {"internal/guestproto", "internal/archive"},
	"internal/archive":            {},
	"internal/guestbin":           {},
	"internal/guestlink":          {"internal/guestproto"},
	"internal/driver":             {},
	"internal/driver/drivertest":  {"internal/driver", "internal/guestlink", "internal/guestproto", "internal/testenv"},
	"internal/driver/gvisor":      {"internal/driver", "internal/guestbin"},
	"internal/driver/fake":        {"internal/driver", "internal/guestproto", "internal/archive"},
	"internal/egress":             {},
	"internal/gateway":            {"internal/driver", "internal/egress"},
	"internal/engine":             {"internal/driver", "internal/egress", "internal/guestlink", "internal/guestproto", "internal/snapshot", "internal/archive"},
	"internal/snapshot":           {},
	"internal/doctor":             {},
	"internal/sqlite":             {},
	"internal/datadir":            {},
	"internal/template":           {"templates"},
	"templates":                   {},
	"internal/config":             {},
	"internal/api":                {"internal/engine", "internal/archive", "internal/dialect", "internal/output", "api"},
	"internal/dialect":            {"internal/engine"},
	"internal/dialect/declaw":     {"internal/dialect", "internal/engine", "internal/output"},
	"internal/dialect/superserve": {"internal/dialect", "internal/engine", "internal/archive", "internal/output"},
	"internal/output":             {},
	"internal/api/apitest":        {"internal/api", "internal/dialect", "internal/engine", "internal/driver/fake", "internal/snapshot", "internal/sqlite"}, // for tests
	"api":                         {},
	"client":                      {"internal/archive"},
	"internal/cli":                {"client", "internal/bench"},
	"internal/bench":              {"client"},
	"internal/testenv":            {},
	"cmd/ringfence":               {"*"},
	"cmd/ringfence-guest":         {"internal/guest"},
	"cmd/ringfence-template":      {"internal/datadir", "internal/template"},
}

// stdlibOnly packages may import nothing from outside the standard library but
// what is listed.
var stdlibOnly = map[string][]string{
	".":                   {},
	"internal/guestproto": {},
	"internal/guest":      {"golang.org/x/sys/unix"},
	"internal/guestlink":  {},
	"internal/archive":    {},
	"internal/driver":     {},
	"internal/egress":     {},
	"internal/engine":     {"golang.org/x/sync/errgroup", "golang.org/x/sys/unix"},
	"client":              {"github.com/coder/websocket"},
	"cmd/ringfence-guest": {},
}

func TestImports(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range sources(t) {
		seen[f.dir] = true
		if f.test || strings.HasPrefix(f.dir, "test/") || f.dir == "internal/driver/drivertest" {
			continue // tests may reach for what they test with
		}
		allowed, known := allowedEdges[f.dir]
		if !known {
			t.Errorf("%s: package %s has no row in allowedEdges: say what it may import", f.path, f.dir)
			continue
		}
		for _, imp := range f.imports {
			if imp == module {
				continue
			}
			if rel, ours := strings.CutPrefix(imp, module+"/"); ours {
				if !edgeAllowed(allowed, rel) {
					t.Errorf("%s imports %s, which %s may not: adapters meet in cmd/ringfence", f.path, rel, f.dir)
				}
				continue
			}
			if extra, strict := stdlibOnly[f.dir]; strict && strings.Contains(strings.Split(imp, "/")[0], ".") && !edgeAllowed(extra, imp) {
				t.Errorf("%s imports %s, but %s is kept to the standard library", f.path, imp, f.dir)
			}
		}
	}
	for dir := range allowedEdges {
		if !seen[dir] {
			t.Errorf("allowedEdges has a row for %s, which does not exist", dir)
		}
	}
}

func edgeAllowed(allowed []string, imp string) bool {
	for _, a := range allowed {
		if a == "*" || a == imp {
			return true
		}
	}
	return false
}

func TestPackageDocs(t *testing.T) {
	docs := map[string][]string{}
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		key := f.dir
		if _, ok := docs[key]; !ok {
			docs[key] = nil
		}
		if f.doc {
			docs[key] = append(docs[key], f.path)
		}
	}
	for dir, with := range docs {
		switch {
		case len(with) == 0:
			t.Errorf("package %s has no package comment", dir)
		case len(with) > 1:
			t.Errorf("package %s has %d package comments, want one: %s", dir, len(with), strings.Join(with, ", "))
		}
	}
}

func TestNamesAndSizes(t *testing.T) {
	banned := map[string]bool{"util": true, "utils": true, "common": true, "helpers": true, "shared": true, "misc": true,
		"base": true, "types": true, "models": true, "manager": true, "managers": true}
	const hardLimit = 1000
	var long []string
	for _, f := range sources(t) {
		if banned[f.pkg] || banned[path.Base(f.dir)] {
			t.Errorf("%s: package name %q says nothing; use a noun that says what is in it", f.path, f.pkg)
		}
		if f.lines > hardLimit {
			t.Errorf("%s has %d lines; the limit is %d", f.path, f.lines, hardLimit)
		}
		if f.lines > 400 && !f.test {
			long = append(long, fmt.Sprintf("%s (%d)", f.path, f.lines))
		}
	}
	sort.Strings(long)
	if len(long) > 0 {
		t.Logf("files over 400 lines: %s", strings.Join(long, ", "))
	}
}

func TestModuleFile(t *testing.T) {
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(mod), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "replace") {
			t.Errorf("go.mod has a replace line: %s", line)
		}
	}
	for _, f := range sources(t) {
		for _, imp := range f.imports {
			if imp == "C" {
				t.Errorf("%s uses cgo: a cgo build cannot start itself inside its own chroot", f.path)
			}
		}
	}
}
