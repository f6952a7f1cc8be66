package datadir

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ringfence.dev/ringfence"
)

func TestPrepare(t *testing.T) {
	base := t.TempDir()
	mode := func(dir string) os.FileMode {
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	made := filepath.Join(base, "a", "b")
	if err := Prepare(made); err != nil || mode(made) != 0o700 {
		t.Errorf("a new one: %v %v", err, mode(made))
	}
	for name, files := range map[string][]string{"empty": nil, "ours": {"ringfence.db", "other"}, "templates-only": {"templates"}} {
		dir := filepath.Join(base, name)
		mustMake(t, dir, 0o755, files...)
		if err := Prepare(dir); err != nil || mode(dir) != 0o700 {
			t.Errorf("%s: %v %v", name, err, mode(dir))
		}
	}
	somebodys := filepath.Join(base, "somebody's")
	mustMake(t, somebodys, 0o755, "letter")
	if err := Prepare(somebodys); ringfence.CodeOf(err) != ringfence.CodeFailedPrecondition || mode(somebodys) != 0o755 {
		t.Errorf("somebody's: %v %v", err, mode(somebodys))
	}
	private := filepath.Join(base, "private")
	mustMake(t, private, 0o700, "letter")
	if err := Prepare(private); err != nil {
		t.Errorf("a private one: %v", err)
	}
	if err := Prepare(filepath.Join(private, "letter")); err == nil {
		t.Error("a file passes as a directory")
	}
}

func mustMake(t *testing.T, dir string, mode os.FileMode, files ...string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	first, err := Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Acquire(dir)
	if ringfence.CodeOf(err) != ringfence.CodeFailedPrecondition || !strings.Contains(fmt.Sprint(err), fmt.Sprintf("process %d uses it", os.Getpid())) {
		t.Errorf("a second one: %v", err)
	}
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	// The number of a process that is long gone, and longer than ours.
	if err := os.WriteFile(filepath.Join(dir, lockName), []byte("123456789012345\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	second, err := Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Release()
	if text, err := os.ReadFile(filepath.Join(dir, lockName)); err != nil || string(text) != fmt.Sprintln(os.Getpid()) {
		t.Errorf("the lock says %q, %v", text, err)
	}
}
