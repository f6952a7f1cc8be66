// Package testenv tells tests what the machine can do. A test that cannot run says
// what is missing and is skipped; with RINGFENCE_TEST_REQUIRE_ALL=1, as in continuous
// integration, it fails instead, so that nothing is skipped silently.
package testenv

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"ringfence.dev/ringfence"
)

// DefaultTemplateDir is where built templates are kept between runs of tests.
const DefaultTemplateDir = "/var/cache/ringfence/templates"

// missing skips the test, or fails it where everything is required.
func missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("RINGFENCE_TEST_REQUIRE_ALL") == "1" {
		t.Fatalf("missing: "+format, args...)
	}
	t.Skipf("missing: "+format, args...)
}

// RequireRoot needs the test to run as root.
func RequireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		missing(t, "root: this test makes namespaces and control groups")
	}
}

// RequireTool needs a program and returns its path. pkg is the Debian package that
// has it.
func RequireTool(t testing.TB, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		missing(t, "%s (package %s)", name, pkg)
	}
	return path
}

// TemplateDir is where tests find built templates: RINGFENCE_TEMPLATE_DIR, or
// DefaultTemplateDir.
func TemplateDir() string {
	if dir := os.Getenv("RINGFENCE_TEMPLATE_DIR"); dir != "" {
		return dir
	}
	return DefaultTemplateDir
}

// RequireTemplate needs a built template and returns it.
func RequireTemplate(t testing.TB, name string) ringfence.Template {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(TemplateDir(), name+".json"))
	if err != nil {
		missing(t, "template %s in %s: run `make template`", name, TemplateDir())
	}
	var record struct {
		Image   string            `json:"image"`
		User    string            `json:"user"`
		WorkDir string            `json:"work_dir"`
		Env     map[string]string `json:"env"`
	}
	if err := json.Unmarshal(raw, &record); err != nil {
		t.Fatalf("cannot read the record of template %s: %v", name, err)
	}
	return ringfence.Template{
		Name: name, Image: record.Image, User: record.User, WorkDir: record.WorkDir, Env: record.Env,
		ImagePath: filepath.Join(TemplateDir(), "images", record.Image+".erofs"),
	}
}

// RequireBinary returns the path of the program that `make build` leaves, which the
// test must not build itself: it is what is shipped that is tested.
func RequireBinary(t testing.TB) string {
	t.Helper()
	return requireBuilt(t, "ringfence", "build")
}

// RequireFaultBinary returns the path of the other build, which stops where a test wants
// it to; see cmd/ringfence, point_faults.go.
func RequireFaultBinary(t testing.TB) string {
	t.Helper()
	return requireBuilt(t, "ringfence-faults", "bin/ringfence-faults")
}

func requireBuilt(t testing.TB, name, target string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		path := filepath.Join(dir, "bin", name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	missing(t, "bin/%s: run `make %s`", name, target)
	return ""
}
