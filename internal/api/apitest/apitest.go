// Package apitest starts the real API, engine and store over sandboxes that live in
// memory, for tests of what talks to a server.
package apitest

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/api"
	"ringfence.dev/ringfence/internal/dialect"
	"ringfence.dev/ringfence/internal/driver/fake"
	"ringfence.dev/ringfence/internal/engine"
	"ringfence.dev/ringfence/internal/snapshot"
	"ringfence.dev/ringfence/internal/sqlite"
)

// Server is a running server.
type Server struct {
	URL    string
	Key    string // an API key
	Engine *engine.Engine
}

// Start starts a server that ends with the test. Its templates are base and
// code-interpreter, with the alias code-interpreter-v1. It speaks the dialects that are given.
func Start(t testing.TB, o fake.Options, dialects ...dialect.Mount) *Server {
	t.Helper()
	ctx := context.Background()
	store, err := sqlite.Open(ctx, filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	snapshots, err := snapshot.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.Open(ctx, engine.Options{
		Store: store, Driver: fake.New(o), Templates: templates{}, Snapshots: snapshots, ColdBoot: true, Log: log,
		Max: ringfence.Size{VCPU: 8, MemoryMiB: 8192, DiskMiB: 65536},
	})
	if err != nil {
		t.Fatal(err)
	}
	key := ringfence.NewAPIKey()
	if _, err := engine.AddKey(ctx, store, ringfence.DefaultProject, "test", key); err != nil {
		t.Fatal(err)
	}
	handler := api.New(api.Options{Engine: e, Log: log, Version: "v0-test", Dialects: dialects})
	h := httptest.NewUnstartedServer(handler)
	h.Config = handler.HTTP()
	h.Start()
	t.Cleanup(func() {
		h.CloseClientConnections() // a test that failed may have left a command behind
		h.Close()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return &Server{URL: h.URL, Key: key, Engine: e}
}

type templates struct{}

func (templates) List() ([]ringfence.Template, error) {
	size := ringfence.Size{VCPU: ringfence.DefaultVCPU, MemoryMiB: 256, DiskMiB: 256}
	built := time.Date(2026, 11, 30, 20, 0, 0, 0, time.UTC)
	hash := strings.Repeat("ab", 32)
	return []ringfence.Template{
		{Name: "base", Image: hash, ImagePath: "/base.erofs", User: "root", WorkDir: "/root", Size: size, Recipe: hash, BuiltAt: built},
		{Name: "code-interpreter", Aliases: []string{"code-interpreter-v1", "superserve/code-interpreter"}, Image: hash, ImagePath: "/code.erofs",
			User: "root", WorkDir: "/home/user", Size: size, Recipe: hash, BuiltAt: built},
	}, nil
}

func (t templates) Lookup(name string) (ringfence.Template, error) {
	all, _ := t.List()
	for _, tm := range all {
		if tm.Name == name || slices.Contains(tm.Aliases, name) {
			return tm, nil
		}
	}
	return ringfence.Template{}, ringfence.Errorf(ringfence.CodeTemplateNotFound, "there is no template %q", name).WithHint("there are base and code-interpreter")
}
