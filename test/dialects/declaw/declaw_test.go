// Package declaw does what programs written for Declaw do, with the published packages
// and a real server, where nothing can be reached but that server.
package declaw

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ringfence.dev/ringfence/internal/dialect/declaw"
	"ringfence.dev/ringfence/test/dialects/internal/world"
)

// The version that the contract describes and the newest one; of npm they are the same.
var (
	python150     = world.Package{Run: "python-1.5.0", Lock: "packages/python-1.5.0"}
	python170     = world.Package{Run: "python-1.7.0", Lock: "packages/python-1.7.0"}
	typescript130 = world.Package{Run: "typescript-1.3.0", Lock: "packages/typescript-1.3.0"}
	packages      = []world.Package{python150, python170, typescript130}
)

func TestMain(m *testing.M) { world.Main(m, packages...) }

// environment is all that a user sets.
func environment(w *world.World) []string {
	return []string{"DECLAW_DOMAIN=" + world.Address, "DECLAW_API_KEY=" + w.Key}
}

// page is the example page, as it is written for Declaw: the examples differ from it in the
// line that imports the SDK alone.
func page(t *testing.T, name, ours, theirs string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("../../../examples", name))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(raw), ours) != 1 {
		t.Fatalf("%s does not hold %q once", name, ours)
	}
	path := filepath.Join(t.TempDir(), filepath.Base(name))
	if err := os.WriteFile(path, []byte(strings.Replace(string(raw), ours, theirs, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPage(t *testing.T) {
	w := world.New(t)
	for _, p := range packages {
		t.Run(p.Run, func(t *testing.T) {
			t.Parallel()
			script := page(t, "python/declaw_page.py", "from ringfence import Sandbox", "from declaw import Sandbox")
			if p == typescript130 {
				script = w.Compile(t, p, page(t, "typescript/declaw_page.ts", `from "@ringfence/sdk"`, `from "@declaw/sdk"`))
			}
			out, err := w.Program(t, p, script, environment(w)...)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{
				"--- snippet 1 (exit=0) ---\nsolution: {x: 13/7, y: 11/7}\n",
				"--- snippet 2 (exit=0) ---\n{'APAC': 150, 'EU': 80}\n", // pandas takes NA for nothing
				"--- snippet 3 (exit=0) ---\nwrote /tmp/chart.png\n",
				"\nchart.png exists: ",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("it did not print %q but\n%s", want, out)
				}
			}
		})
	}
}

// Every row of the table, with every package.
func TestOperations(t *testing.T) {
	w := world.New(t)
	world.Name("allowed.test", "203.0.113.21")
	world.Name("other.test", "203.0.113.22")
	world.Name("a.wild.test", "198.51.100.23")
	for _, p := range packages {
		t.Run(p.Run, func(t *testing.T) {
			t.Parallel()
			script := "operations.py"
			if p == typescript130 {
				script = "operations.mjs"
			}
			w.Operations(t, p, declaw.Operations, script, environment(w)...)
		})
	}
}

// Sandboxes that are killed under what runs in them, and fifty clients at once.
func TestStress(t *testing.T) {
	w := world.New(t)
	for p, script := range map[world.Package]string{python170: "stress.py", typescript130: "stress.mjs"} {
		t.Run(p.Run, func(t *testing.T) {
			t.Parallel()
			if out, err := w.Program(t, p, script, environment(w)...); err != nil || out != "done\n" {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
