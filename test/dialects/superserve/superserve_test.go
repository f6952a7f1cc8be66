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

func TestMain(m *testing.M) { world.Main(m, packages...) }

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

func TestOperations(t *testing.T) {
	w := start(t)
	for _, p := range packages {
		t.Run(p.Run, func(t *testing.T) {
			t.Parallel()
			w.Operations(t, p, superserve.Operations, script(p, "operations"), environment(t, w, p)...)
		})
	}
}
