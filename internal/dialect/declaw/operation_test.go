package declaw

import (
	"bytes"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"ringfence.dev/ringfence/internal/dialect"
)

var update = flag.Bool("update", false, "write docs/compatibility/declaw.md")

const document = "../../../docs/compatibility/declaw.md"

func TestDocument(t *testing.T) {
	if err := dialect.Check(Operations); err != nil {
		t.Fatal(err)
	}
	want := dialect.Document(Introduction, Operations)
	if *update {
		if err := os.WriteFile(document, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(document); err != nil || !bytes.Equal(have, want) {
		t.Errorf("%s is not what the table makes (%v); run go test ./internal/dialect/declaw -run TestDocument -update", document, err)
	}
}

// Each route is of an operation: what the dialect answers stands on the page.
func TestRoutesAreDocumented(t *testing.T) {
	said := map[string]bool{}
	for _, o := range Operations {
		path, _, _ := strings.Cut(o.Route, "?")
		for alias, name := range map[string]string{"{pid}": "{process}", "{cmd_id}": "{process}", "{snapshot_id}": "{snapshot}"} {
			path = strings.ReplaceAll(path, alias, name)
		}
		said[path] = true
	}
	// Those that a row of another name does as well, and those that no SDK calls.
	also := []string{
		"POST /sandboxes/{id}/resume", "POST /sandboxes/{id}/snapshots", "POST /sandboxes/{id}/pty/{process}/stdin", "POST /sandboxes/{id}/stdio/{process}/stdin/close",
		"GET /sandboxes/{id}/files/exists", "GET /templates", "GET /auth/me",
	}
	for _, rt := range routes {
		if strings.Contains(rt.pattern, " ") && !said[rt.pattern] && !slices.Contains(also, rt.pattern) {
			t.Errorf("%s is on no row of the table", rt.pattern)
		}
	}
}
