package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"ringfence.dev/ringfence"
)

func mustOpen(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case <-s.closed:
		default:
			s.Close() // a test's end
		}
	})
	if err := s.EnsureProject(t.Context(), ringfence.Project{ID: ringfence.DefaultProject, Name: "default", CreatedAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	return s
}

func newSandbox(created time.Time) *ringfence.Sandbox {
	return &ringfence.Sandbox{
		ID: ringfence.NewSandboxID(), Project: ringfence.DefaultProject, Name: "n", Template: "base",
		State: ringfence.StateStarting, Size: ringfence.Size{VCPU: 2, MemoryMiB: 512, DiskMiB: 64},
		Env: map[string]string{"SECRET": "x"}, Metadata: map[string]string{"a": "1"}, User: "root", WorkDir: "/",
		CreatedAt: created.UTC().Truncate(time.Microsecond), Generation: 1, TokenHash: ringfence.HashSecret(ringfence.NewToken()),
	}
}

func mustCreate(t testing.TB, s *Store, sb *ringfence.Sandbox) *ringfence.Sandbox {
	t.Helper()
	if err := s.CreateSandbox(context.Background(), sb); err != nil {
		t.Fatal(err)
	}
	return sb
}

func TestOpen(t *testing.T) {
	t.Run("FilesArePrivate", func(t *testing.T) {
		dir := t.TempDir()
		// A path with characters that mean something in a URI.
		path := filepath.Join(dir, "a b?c#d%41.db")
		s := mustOpen(t, path)
		mustCreate(t, s, newSandbox(time.Now()))
		for _, name := range []string{path, path + "-wal", path + "-shm"} {
			info, err := os.Stat(name)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v, want 0600", name, info.Mode().Perm())
			}
		}
	})
	t.Run("Again", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "x.db")
		s := mustOpen(t, path)
		sb := mustCreate(t, s, newSandbox(time.Now()))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := mustOpen(t, path).Sandbox(t.Context(), sb.Project, sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		if got.Env["SECRET"] != "x" || got.TokenHash != sb.TokenHash || !got.CreatedAt.Equal(sb.CreatedAt) || !got.ExpiresAt.IsZero() {
			t.Errorf("got %+v, want %+v", got, sb)
		}
	})
	t.Run("ErrNewer", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "x.db")
		s := mustOpen(t, path)
		if err := s.change("x", func(tx *sql.Tx) error { _, err := tx.Exec("PRAGMA user_version = 1000"); return err }); err != nil {
			t.Fatal(err)
		}
		s.Close() // the next line says
		if _, err := Open(t.Context(), path); ringfence.CodeOf(err) != ringfence.CodeFailedPrecondition {
			t.Errorf("got %v, want failed_precondition", err)
		}
	})
	t.Run("ErrNotADatabase", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "x.db")
		if err := os.WriteFile(path, []byte("this is no database, but it is long enough to have a header, so that it is looked at"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(t.Context(), path)
		var e *ringfence.Error
		if !errors.As(err, &e) || e.Hint == "" {
			t.Errorf("got %v, want an error with a hint", err)
		}
	})
}

func TestKeys(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "x.db"))
	text := ringfence.NewAPIKey()
	k := ringfence.Key{ID: "k1", Project: ringfence.DefaultProject, Name: "first", Hash: ringfence.HashSecret(text), CreatedAt: time.Now()}
	if err := s.CreateKey(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	if got, err := s.KeyByHash(t.Context(), ringfence.HashSecret(text)); err != nil || got.ID != "k1" {
		t.Errorf("KeyByHash: %+v, %v", got, err)
	}
	if _, err := s.KeyByHash(t.Context(), ringfence.HashSecret("other")); ringfence.CodeOf(err) != ringfence.CodeNotFound {
		t.Errorf("unknown hash: %v", err)
	}
	if err := s.CreateKey(t.Context(), k); ringfence.CodeOf(err) != ringfence.CodeAlreadyExists {
		t.Errorf("the same key again: %v", err)
	}
	// A row that is not whole is a fault of ours, and nothing that "exists already".
	if err := s.EnsureProject(t.Context(), ringfence.Project{ID: "undated", Name: "undated"}); ringfence.CodeOf(err) != ringfence.CodeInternal {
		t.Errorf("a project without a time: %v", err)
	}
	orphan := k
	orphan.ID, orphan.Project, orphan.Hash = "k9", "none", ringfence.HashSecret("orphan")
	if err := s.CreateKey(t.Context(), orphan); ringfence.CodeOf(err) != ringfence.CodeInternal {
		t.Errorf("a key of a project that does not exist: %v", err)
	}
	used := time.Now().UTC().Truncate(time.Microsecond)
	if err := s.TouchKeys(t.Context(), map[string]time.Time{"k1": used}); err != nil {
		t.Fatal(err)
	}
	if keys, err := s.Keys(t.Context(), ringfence.DefaultProject); err != nil || len(keys) != 1 || !keys[0].LastUsedAt.Equal(used) {
		t.Errorf("Keys: %+v, %v", keys, err)
	}
	if err := s.DeleteKey(t.Context(), ringfence.DefaultProject, "k1"); ringfence.CodeOf(err) != ringfence.CodeFailedPrecondition {
		t.Errorf("delete the last one: %v", err)
	}
	if n, err := s.CountKeys(t.Context()); n != 1 || err != nil {
		t.Errorf("after a refused delete there are %d keys, %v", n, err)
	}
	k2 := k
	k2.ID, k2.Hash = "k2", ringfence.HashSecret("k2")
	if err := s.CreateKey(t.Context(), k2); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteKey(t.Context(), "another project", "k1"); ringfence.CodeOf(err) != ringfence.CodeNotFound {
		t.Errorf("delete another project's: %v", err)
	}
	if err := s.DeleteKey(t.Context(), ringfence.DefaultProject, "k1"); err != nil {
		t.Error(err)
	}
}

func TestMove(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "x.db"))
	sb := mustCreate(t, s, newSandbox(time.Now()))
	at := time.Now().UTC().Truncate(time.Microsecond)
	gen, err := s.MoveSandbox(t.Context(), ringfence.Move{ID: sb.ID, Generation: 1, From: ringfence.StateStarting, To: ringfence.StateRunning, At: at})
	if err != nil || gen != 2 {
		t.Fatalf("generation %d, %v", gen, err)
	}
	// The same move again comes from a stale actor.
	_, err = s.MoveSandbox(t.Context(), ringfence.Move{ID: sb.ID, Generation: 1, From: ringfence.StateStarting, To: ringfence.StateRunning, At: at})
	if ringfence.CodeOf(err) != ringfence.CodeFailedPrecondition {
		t.Errorf("a stale move: %v", err)
	}
	if _, err = s.MoveSandbox(t.Context(), ringfence.Move{ID: sb.ID, Generation: 2, From: ringfence.StateRunning, To: ringfence.StateStarting}); err == nil {
		t.Error("an illegal move was made")
	}
	if _, err = s.MoveSandbox(t.Context(), ringfence.Move{ID: sb.ID, Generation: 2, From: ringfence.StateRunning, To: ringfence.StateDeleted, Reason: ringfence.ReasonKilled, At: at}); err != nil {
		t.Fatal(err)
	}
	got, err := s.Sandbox(t.Context(), sb.Project, sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	if got.State != ringfence.StateDeleted || got.Reason != ringfence.ReasonKilled || !got.EndedAt.Equal(at) || !got.StartedAt.Equal(at) || got.Generation != 3 {
		t.Errorf("got %+v", got)
	}
	if len(got.Env) != 0 {
		t.Errorf("the env of an ended sandbox is kept: %v", got.Env)
	}
	if _, err := s.Sandbox(t.Context(), "other", sb.ID); ringfence.CodeOf(err) != ringfence.CodeNotFound {
		t.Errorf("another project's: %v", err)
	}
	if n, err := s.PurgeSandboxes(t.Context(), at); n != 0 || err != nil {
		t.Errorf("purged %d, %v", n, err)
	}
	if n, err := s.PurgeSandboxes(t.Context(), at.Add(time.Second)); n != 1 || err != nil {
		t.Errorf("purged %d, %v", n, err)
	}
}

// One of a hundred movers of the same generation wins.
func TestMoveRace(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "x.db"))
	sb := mustCreate(t, s, newSandbox(time.Now()))
	var wg sync.WaitGroup
	wins := make(chan int, 100)
	for i := range 100 {
		wg.Go(func() {
			_, err := s.MoveSandbox(context.Background(), ringfence.Move{ID: sb.ID, Generation: 1, From: ringfence.StateStarting, To: ringfence.StateDeleted, Reason: ringfence.ReasonKilled, At: time.Now()})
			if err == nil {
				wins <- i
			}
		})
	}
	wg.Wait()
	if len(wins) != 1 {
		t.Errorf("%d movers won, want 1", len(wins))
	}
}

func TestList(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "x.db"))
	base := time.Now()
	var ids []string
	for i := range 10 {
		// Pairs share a time, so that the id decides.
		sb := newSandbox(base.Add(time.Duration(i/2) * time.Second))
		sb.Metadata = map[string]string{"n": fmt.Sprint(i % 3), `we"ird.key$[0]`: "v"}
		ids = append(ids, mustCreate(t, s, sb).ID)
	}
	seen := map[string]bool{}
	f := ringfence.SandboxFilter{Project: ringfence.DefaultProject, Limit: 3}
	var last *ringfence.Sandbox
	for {
		page, err := s.ListSandboxes(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, sb := range page {
			if seen[sb.ID] {
				t.Errorf("%s came twice", sb.ID)
			}
			if last != nil && (sb.CreatedAt.After(last.CreatedAt) || sb.CreatedAt.Equal(last.CreatedAt) && sb.ID > last.ID) {
				t.Errorf("%s is out of order", sb.ID)
			}
			seen[sb.ID], last = true, sb
		}
		if len(page) < f.Limit {
			break
		}
		f.Before = &ringfence.SandboxCursor{CreatedAt: last.CreatedAt, ID: last.ID}
	}
	if len(seen) != len(ids) {
		t.Errorf("%d of %d came", len(seen), len(ids))
	}
	f = ringfence.SandboxFilter{Project: ringfence.DefaultProject, Limit: 100, Metadata: map[string]string{"n": "1", `we"ird.key$[0]`: "v"}}
	if page, err := s.ListSandboxes(t.Context(), f); err != nil || len(page) != 3 {
		t.Errorf("by metadata: %d, %v", len(page), err)
	}
	f.Metadata = map[string]string{"n": "' OR 1=1 --"}
	if page, err := s.ListSandboxes(t.Context(), f); err != nil || len(page) != 0 {
		t.Errorf("by hostile metadata: %d, %v", len(page), err)
	}
	f.Metadata, f.States = nil, []ringfence.State{ringfence.StateRunning, ringfence.StateFailed}
	if page, err := s.ListSandboxes(t.Context(), f); err != nil || len(page) != 0 {
		t.Errorf("by state: %d, %v", len(page), err)
	}
}

// Two processes may write: the daemon, and `ringfence key create` beside it.
func TestTwoWriters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	a, b := mustOpen(t, path), mustOpen(t, path)
	var wg sync.WaitGroup
	for i, s := range []*Store{a, b} {
		wg.Go(func() {
			for j := range 50 {
				k := ringfence.Key{ID: fmt.Sprintf("%d-%d", i, j), Project: ringfence.DefaultProject, Hash: ringfence.HashSecret(fmt.Sprint(i, j)), CreatedAt: time.Now()}
				if err := s.CreateKey(context.Background(), k); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n, err := a.CountKeys(t.Context()); n != 100 || err != nil {
		t.Errorf("%d keys, %v", n, err)
	}
}

func TestClosed(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "x.db"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.SetMeta(t.Context(), "a", "b"); ringfence.CodeOf(err) != ringfence.CodeUnavailable {
		t.Errorf("got %v, want unavailable", err)
	}
}

func BenchmarkCreate(b *testing.B) {
	dir := b.TempDir()
	for _, n := range []int{1, 32} {
		b.Run(fmt.Sprint(n, "AtOnce"), func(b *testing.B) {
			s := mustOpen(b, filepath.Join(dir, fmt.Sprint(n)))
			b.SetParallelism(n)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					mustCreate(b, s, newSandbox(time.Now()))
				}
			})
		})
	}
}

func BenchmarkKeyByHash(b *testing.B) {
	s := mustOpen(b, filepath.Join(b.TempDir(), "x.db"))
	for b.Loop() {
		s.KeyByHash(context.Background(), [32]byte{1}) // it is measured
	}
}
