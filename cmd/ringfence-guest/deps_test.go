package main

import (
	"flag"
	"os"
	"os/exec"
	"sort"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the dependency list anew")

// The agent runs in every sandbox, so what it is made of is reviewed: a package that
// is new here, of the standard library too, shows in dependencies.txt.
func TestDependencies(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var deps []string
	for _, dep := range strings.Fields(string(out)) {
		if strings.HasPrefix(dep, "internal/") || strings.HasPrefix(dep, "vendor/") || strings.Contains(dep, "/internal/") && !strings.HasPrefix(dep, "ringfence.dev/") {
			continue // the standard library's own business
		}
		if strings.Contains(strings.Split(dep, "/")[0], ".") && !strings.HasPrefix(dep, "ringfence.dev/") && dep != "golang.org/x/sys/unix" {
			t.Errorf("the agent depends on %s: only the standard library and golang.org/x/sys/unix are allowed", dep)
		}
		deps = append(deps, dep)
	}
	sort.Strings(deps)
	got := strings.Join(deps, "\n") + "\n"
	const list = "dependencies.txt"
	if *update {
		if err := os.WriteFile(list, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the dependencies changed; look at them, then run go test ./cmd/ringfence-guest -update\n%s", got)
	}
}
