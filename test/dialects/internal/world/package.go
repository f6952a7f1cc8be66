package world

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Package is a set of published packages that a lock file pins.
type Package struct {
	// Run names it in tables and results: the language and the version, such as "python-1.7.0".
	Run string
	// Lock is a directory: with a requirements.txt that has hashes, or with a package.json
	// and a package-lock.json. Relative to the test's.
	Lock string
}

func (p Package) python() bool { return strings.HasPrefix(p.Run, "python") }

func (p Package) files() []string {
	if p.python() {
		return []string{"requirements.txt"}
	}
	return []string{"package.json", "package-lock.json"}
}

// dir is where the package is installed: below the checkout's .tools, by what its lock
// file says.
func (p Package) dir() (string, error) {
	sum := sha256.New()
	for _, name := range p.files() {
		raw, err := os.ReadFile(filepath.Join(p.Lock, name))
		if err != nil {
			return "", err
		}
		sum.Write(raw)
	}
	root, err := os.Getwd()
	for ; err == nil && root != "/"; root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			return filepath.Join(root, ".tools", "dialects", p.Run+"-"+hex.EncodeToString(sum.Sum(nil)[:8])), nil
		}
	}
	return "", errors.Join(err, errors.New("this is no checkout"))
}

// install installs it unless it is there.
func (p Package) install() error {
	dir, err := p.dir()
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	into, err := os.MkdirTemp(filepath.Dir(dir), "install-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(into)
	for _, name := range p.files() {
		raw, err := os.ReadFile(filepath.Join(p.Lock, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(into, name), raw, 0o644); err != nil {
			return err
		}
	}
	cmd := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	if p.python() {
		cmd = exec.Command("python3", "-m", "venv", "venv")
		cmd.Dir = into
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		cmd = exec.Command("venv/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-warn-script-location", "--only-binary", ":all:",
			"--require-hashes", "-r", "requirements.txt", "--target", "packages")
	}
	cmd.Dir = into
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if err := os.Chmod(into, 0o755); err != nil {
		return err
	}
	return os.Rename(into, dir)
}

// Compile compiles a TypeScript program against a package, and returns what node runs.
func (w *World) Compile(t testing.TB, p Package, script string) string {
	t.Helper()
	dir, err := p.dir()
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	at := t.TempDir()
	if err := errors.Join(
		os.Symlink(filepath.Join(dir, "node_modules"), filepath.Join(at, "node_modules")),
		os.WriteFile(filepath.Join(at, "page.ts"), source, 0o644),
		os.WriteFile(filepath.Join(at, "package.json"), []byte(`{"type":"module"}`), 0o644),
		os.WriteFile(filepath.Join(at, "tsconfig.json"), []byte(`{"compilerOptions":{"target":"ES2022","module":"NodeNext","types":["node"],"strict":true,"skipLibCheck":true,"outDir":"dist"}}`), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", "node_modules/typescript/bin/tsc", "-p", ".")
	cmd.Dir = at
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	compiled := filepath.Join(at, "page.mjs")
	if err := os.Rename(filepath.Join(at, "dist", "page.js"), compiled); err != nil {
		t.Fatal(err)
	}
	return compiled
}
