package template

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/testenv"
)

func TestBuildFails(t *testing.T) {
	for _, c := range []struct{ name, toml, script, want string }{
		{"script", "[[steps]]\nrun = 'a.sh'\n", "echo before; echo the reason >&2; exit 7", "\n    | before\n    | the reason\n"},
		{"unset variable", "[[steps]]\nrun = 'a.sh'\n", "echo $nothing_of_that_name", "nothing_of_that_name"},
		{"no such user", "[[steps]]\nrun = 'a.sh'\nuser = 'nobody-here'\n", "true", `no user "nobody-here"`},
		{"final user", "user='nobody-here'\n[[steps]]\nrun = 'a.sh'\n", "true", `no user "nobody-here"`},
		{"work_dir", "work_dir='/nowhere'\n[[steps]]\nrun = 'a.sh'\n", "true", "work_dir /nowhere is not a directory"},
		{"copy through a link", "[[steps]]\nrun = 'a.sh'\n[[steps]]\ncopy = 'a.sh'\nto = '/out/x'\n", "ln -s /../../../../../tmp /out", "escapes"},
		{"no pip", "[python]\nlock = 'r.lock'\n", "", "python3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := tinyStore(t)
			toml := "name = 'x'\n" + c.toml + "\n[base]\ntemplate = 'tiny'\n"
			var out bytes.Buffer
			_, err := Build(t.Context(), Options{Recipe: recipeDir(t, toml, map[string]string{"a.sh": c.script, "r.lock": "six==1.0 --hash=sha256:00\n"}), Dir: s.Dir, Progress: &out})
			if err == nil || !strings.Contains(out.String()+err.Error(), c.want) || !strings.Contains(err.Error(), `cannot build template "x"`) {
				t.Errorf("got %v, want %q in it or in\n%s", err, c.want, &out)
			}
			onlyBase(t, s)
		})
	}
}

func TestBuildIsInterrupted(t *testing.T) {
	s := tinyStore(t)
	recipe := recipeDir(t, onTiny+"[[steps]]\nrun = 'a.sh'\n", map[string]string{"a.sh": "setsid sleep 98765 & echo ready; sleep 98765"})
	ctx, cancel := context.WithCancel(t.Context())
	began := time.Now()
	go func() {
		waitFor(t, func() bool { return len(processesIn("98765")) >= 2 })
		began = time.Now()
		cancel()
	}()
	_, err := Build(ctx, Options{Recipe: recipe, Dir: s.Dir})
	if ringfence.CodeOf(err) != ringfence.CodeCanceled {
		t.Errorf("got %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v to stop", took)
	}
	waitFor(t, func() bool { return len(processesIn("98765")) == 0 })
	onlyBase(t, s)
}

func TestBuildIsKilled(t *testing.T) {
	s := tinyStore(t)
	recipe := recipeDir(t, onTiny+"[[steps]]\nrun = 'a.sh'\n", map[string]string{"a.sh": "setsid sleep 87654 & sleep 87654"})
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "TEST_BUILD_RECIPE="+recipe, "TEST_BUILD_DIR="+s.Dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return len(processesIn("87654")) >= 2 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	waitFor(t, func() bool { return len(processesIn("87654")) == 0 })
	if left, _ := os.ReadDir(filepath.Join(s.Dir, "build")); len(left) != 1 {
		t.Fatalf("expected the killed build's directory, found %v", left)
	}

	// The next build of that name, here a failing one, takes it away.
	recipe = recipeDir(t, onTiny+"[[steps]]\nrun = 'a.sh'\n", map[string]string{"a.sh": "false"})
	if _, err := Build(t.Context(), Options{Recipe: recipe, Dir: s.Dir}); err == nil {
		t.Error("the failing build did not fail")
	}
	onlyBase(t, s)
}

func TestTwoBuildsAtOnce(t *testing.T) {
	s := tinyStore(t)
	recipe := recipeDir(t, onTiny+"[[steps]]\nrun = 'a.sh'\n", map[string]string{"a.sh": "sleep 1"})
	var wg sync.WaitGroup
	var results [2]Result
	var outs [2]bytes.Buffer
	for i := range results {
		wg.Go(func() {
			var err error
			if results[i], err = Build(t.Context(), Options{Recipe: recipe, Dir: s.Dir, Progress: &outs[i]}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if results[0].Reused == results[1].Reused || results[0].Template.Image != results[1].Template.Image {
		t.Errorf("got %+v", results)
	}
	if all := outs[0].String() + outs[1].String(); !strings.Contains(all, "waiting for another build") {
		t.Errorf("nobody said that it waits: %s", all)
	}
}

func TestBuildNeedsRootAndTools(t *testing.T) {
	r, err := Load("base")
	if err != nil {
		t.Fatal(err)
	}
	old := toolPath
	toolPath = "/nowhere"
	err = (&builder{}).tools(r)
	toolPath = old
	if ringfence.CodeOf(err) != ringfence.CodeFailedPrecondition || !strings.Contains(err.Error(), "no mkfs.erofs and mmdebstrap") ||
		!strings.Contains(err.Error(), "apt-get install erofs-utils mmdebstrap") {
		t.Errorf("tools: %v", err)
	}

	testenv.RequireRoot(t)
	dir := t.TempDir()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"TEST_BUILD_RECIPE=base", "TEST_BUILD_DIR=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, _ := cmd.CombinedOutput()
	if want := ringfence.RowOf(ringfence.CodeFailedPrecondition).Exit; cmd.ProcessState.ExitCode() != want || !strings.Contains(string(out), "building needs root; run it again with sudo") {
		t.Errorf("exit %d: %s", cmd.ProcessState.ExitCode(), out)
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for range 600 {
		if ok() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Error("waited 30 s for nothing")
}

// Nothing that the caller of a build has open, or that hands a step over, is open in a step.
func TestStepInheritsNothing(t *testing.T) {
	testenv.RequireRoot(t)
	inherited, err := unix.Dup(0) // not close-on-exec
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inherited)
	var open []string
	step := jail{Dir: "/", Env: []string{"PATH=" + os.Getenv("PATH")}, Args: []string{"sh", "-c", `for f in /proc/$$/fd/*; do echo "${f##*/}"; done`}}
	if err := step.run(t.Context(), "list", func(line string) { open = append(open, line) }); err != nil {
		t.Fatal(err)
	}
	// The shell itself may have one for the directory that it lists.
	if len(open) < 3 || len(open) > 4 || slices.Contains(open, strconv.Itoa(inherited)) {
		t.Errorf("with %d inherited a step has %q open", inherited, open)
	}
}
