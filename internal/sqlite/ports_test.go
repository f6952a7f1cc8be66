package sqlite

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"ringfence.dev/ringfence"
)

func TestPublicPorts(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "x.db"))
	a, b := mustCreate(t, s, newSandbox(time.Now())), mustCreate(t, s, newSandbox(time.Now()))
	for _, change := range []struct {
		id     string
		port   int
		public bool
		wakes  bool
	}{{a.ID, 8000, true, false}, {a.ID, 80, true, false}, {a.ID, 80, true, true}, {b.ID, 1, true, true}, {b.ID, 1, true, false}, {b.ID, 2, true, true}, {b.ID, 2, false, false}, {b.ID, 3, false, false}} {
		if err := s.SetPublicPort(t.Context(), change.id, change.port, change.public, change.wakes); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want map[string]map[int]bool) {
		t.Helper()
		got, err := s.PublicPorts(t.Context())
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %v %v, want %v", got, err, want)
		}
	}
	check(map[string]map[int]bool{a.ID: {80: true, 8000: false}, b.ID: {1: false}})
	if err := s.SetPublicPort(t.Context(), ringfence.NewSandboxID(), 1, true, false); err == nil {
		t.Error("a port of no sandbox is kept")
	}
	// What has ended has no ports, and its record takes them along.
	at := time.Now()
	if _, err := s.MoveSandbox(t.Context(), ringfence.Move{ID: b.ID, Generation: 1, From: ringfence.StateStarting, To: ringfence.StateDeleted, Reason: ringfence.ReasonKilled, At: at}); err != nil {
		t.Fatal(err)
	}
	check(map[string]map[int]bool{a.ID: {80: true, 8000: false}})
	if n, err := s.PurgeSandboxes(t.Context(), at.Add(time.Hour)); err != nil || n != 1 {
		t.Errorf("purged %d, %v", n, err)
	}
	var left int
	if err := s.read.QueryRow("SELECT count(*) FROM public_ports").Scan(&left); err != nil || left != 2 {
		t.Errorf("%d rows are left, %v", left, err)
	}
}
