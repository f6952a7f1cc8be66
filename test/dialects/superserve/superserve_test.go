// Package superserve_test runs the published packages of Superserve against a real server.
package superserve_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ringfence.dev/ringfence/internal/dialect"
	"ringfence.dev/ringfence/internal/dialect/superserve"
	"ringfence.dev/ringfence/test/dialects/internal/world"
)

var packages = []world.Package{
	{Run: "python-0.8.3", Lock: "packages/python-0.8.3"},
	{Run: "python-0.11.4", Lock: "packages/python-0.11.4"},
	{Run: "typescript-0.8.1", Lock: "packages/typescript-0.8.1"},
}

func TestMain(m *testing.M) {
	flag.Parse()
	// Most of what the programs do is to wait: one beside the other for each core takes too long.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	world.Main(m, packages...)
}

var update = flag.Bool("update", false, "write docs/compatibility/superserve.md")

// The page in the documentation is what the table makes.
func TestDocument(t *testing.T) {
	if err := dialect.Check(superserve.Operations); err != nil {
		t.Fatal(err)
	}
	const file = "../../../docs/compatibility/superserve.md"
	want := superserve.Document()
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not what the table makes (%v); run this test with -update", file, err)
	}
}

// environment is what a user sets, and nothing else.
func environment(t *testing.T, w *world.World, p world.Package) []string {
	t.Helper()
	preload, err := filepath.Abs("../../../sdk/preload/superserve")
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"SUPERSERVE_API_KEY=" + w.Key, "SUPERSERVE_BASE_URL=http://" + world.Address + "/superserve"}
	if strings.HasPrefix(p.Run, "python") {
		return append(env, "PYTHONPATH="+filepath.Join(preload, "python"))
	}
	// Node.js before 22 has WebSocket behind a flag.
	return append(env, "NODE_OPTIONS=--import "+filepath.Join(preload, "node.mjs")+" --experimental-websocket")
}

func start(t *testing.T) *world.World {
	t.Helper()
	world.Name("api.known.test", "203.0.113.7")
	world.Name("other.known.test", "203.0.113.8")
	return world.New(t, "--superserve-listen", "127.0.0.1:7443", "--open-networks", "203.0.113.0/24")
}

func script(p world.Package, name string) string {
	if strings.HasPrefix(p.Run, "python") {
		return name + ".py"
	}
	return name + ".mjs"
}

// The programs go on beside each other, each with the packages that it is done with.
func TestPackages(t *testing.T) {
	w := start(t)
	each := func(name string, packages []world.Package, test func(*testing.T, *world.World, world.Package)) {
		for _, p := range packages {
			t.Run(name+"/"+p.Run, func(t *testing.T) {
				t.Parallel()
				test(t, w, p)
			})
		}
	}
	each("operations", packages, operations)
	each("stress", packages[1:], stress)
	each("page", packages, page)
}

// operations does what the table says.
func operations(t *testing.T, w *world.World, p world.Package) {
	w.Operations(t, p, superserve.Operations, script(p, "operations"), environment(t, w, p)...)
}

// stress kills and pauses sandboxes under commands, lets clients leave, and has 50 of them
// at once: the program says what is to come of each.
func stress(t *testing.T, w *world.World, p world.Package) {
	if out, err := w.Program(t, p, script(p, "stress"), environment(t, w, p)...); err != nil || out != "ok\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

// page does what the page does that the examples are of, as it is written for Superserve's
// packages: only the import line of the examples is another one, and a type that Node.js
// would not take.
func page(t *testing.T, w *world.World, p world.Package) {
	example, replace := "../../../examples/python/superserve_page.py", []string{"from ringfence import", "from superserve import"}
	if !strings.HasPrefix(p.Run, "python") {
		example = "../../../examples/typescript/superserve_page.ts"
		replace = []string{`from "@ringfence/sdk"`, `from "@superserve/sdk"`, "(code: string)", "(code)"}
	}
	raw, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for i := 0; i < len(replace); i += 2 {
		if strings.Count(text, replace[i]) != 1 {
			t.Fatalf("%q is not once in %s", replace[i], example)
		}
		text = strings.ReplaceAll(text, replace[i], replace[i+1])
	}
	file := filepath.Join(t.TempDir(), script(p, "page"))
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := w.Program(t, p, file, environment(t, w, p)...)
	if err != nil || !strings.Contains(out, "count  4.000000  4.000000") || !strings.HasSuffix(strings.TrimSpace(out), "540") {
		t.Errorf("%v\n%s", err, out)
	}
}

// Without the preload the packages call their vendor. This is what the documentation warns
// of, and shows that the other tests would notice.
func TestWithoutPreload(t *testing.T) {
	w := start(t)
	for _, p := range packages {
		var env []string
		for _, v := range environment(t, w, p) {
			if !strings.HasPrefix(v, "PYTHONPATH=") && !strings.HasPrefix(v, "NODE_OPTIONS=") {
				env = append(env, v)
			}
		}
		if _, err := w.Program(t, p, script(p, "leak"), env...); err == nil {
			t.Errorf("%s: a command ran", p.Run)
		}
		if seen := strings.Join(world.Noticed(), "\n"); !strings.Contains(seen, "looked up sandbox.superserve.ai.") {
			t.Errorf("%s: noticed %q", p.Run, seen)
		}
	}
}
