// Package sqlite is the store: projects, keys and sandboxes in one embedded
// SQLite file. What a method has acknowledged survives SIGKILL and loss of power.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver, in pure Go

	"ringfence.dev/ringfence"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Store is an open database. Its methods may be called concurrently, and other
// processes may have the same file open. Errors are *ringfence.Error.
type Store struct {
	write  *sql.DB // one connection
	read   *sql.DB
	queue  chan *change
	closed chan struct{} // closed by Close
	done   chan struct{} // closed when the writer has ended
}

// Open opens the database at path, makes it when it is missing, and brings its
// schema up to date. The file can be read by its owner alone.
func Open(ctx context.Context, path string) (*Store, error) {
	// SQLite gives its -wal and -shm files the mode of the database file.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, openError(path, err)
	}
	err = errors.Join(f.Chmod(0o600), f.Close())
	if err != nil {
		return nil, openError(path, err)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, openError(path, err)
	}
	s := &Store{
		queue:  make(chan *change, maxBatch),
		closed: make(chan struct{}),
		done:   make(chan struct{}),
	}
	// FULL: a commit is on the disk before it is acknowledged. NORMAL would lose
	// the last commits when the power fails, a sandbox that a client was given among them.
	if s.write, err = sql.Open("sqlite", dsn(abs, "immediate", "synchronous(FULL)")); err != nil {
		return nil, openError(path, err)
	}
	s.write.SetMaxOpenConns(1)
	if s.read, err = sql.Open("sqlite", dsn(abs, "deferred", "query_only(1)")); err != nil {
		return nil, errors.Join(openError(path, err), s.write.Close())
	}
	s.read.SetMaxOpenConns(4)
	if err := s.migrate(ctx); err != nil {
		return nil, errors.Join(err, s.read.Close(), s.write.Close())
	}
	go s.writer()
	return s, nil
}

func openError(path string, err error) error {
	return ringfence.Errorf(ringfence.CodeInternal, "cannot open the database %s: %w", path, err)
}

func dsn(path, txlock string, pragmas ...string) string {
	q := url.Values{"_txlock": {txlock}}
	// busy_timeout is first, since switching to WAL may already have to wait.
	for _, p := range append([]string{"busy_timeout(10000)", "journal_mode(WAL)", "foreign_keys(1)", "cache_size(-1024)"}, pragmas...) {
		q.Add("_pragma", p)
	}
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
}

// Close finishes the writes that were begun and closes the file.
func (s *Store) Close() error {
	close(s.closed)
	<-s.done
	return errors.Join(s.read.Close(), s.write.Close())
}

// migrate runs the migrations that the file has not had. Its number is kept in
// SQLite's user_version.
func (s *Store) migrate(ctx context.Context) error {
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return fault(err, "cannot list the migrations")
	}
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return fault(err, "cannot open the database")
	}
	defer tx.Rollback() // after a commit there is nothing to roll back
	var have int
	if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return fault(err, "cannot read the database's version")
	}
	if have > len(names) {
		return ringfence.Errorf(ringfence.CodeFailedPrecondition,
			"cannot open the database: a newer Ringfence wrote it (version %d, this one knows %d)", have, len(names)).
			WithHint("start the newer Ringfence, or use another data directory")
	}
	for i, name := range names[have:] {
		text, err := migrations.ReadFile(name)
		if err != nil {
			return fault(err, "cannot read the migration "+name)
		}
		if _, err := tx.ExecContext(ctx, string(text)); err != nil {
			return fault(err, "cannot run the migration "+name)
		}
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", have+i+1)); err != nil {
			return fault(err, "cannot set the database's version")
		}
	}
	if err := tx.Commit(); err != nil {
		return fault(err, "cannot bring the database up to date")
	}
	return nil
}

// Meta returns the value kept under name, "" when there is none.
func (s *Store) Meta(ctx context.Context, name string) (string, error) {
	var value string
	err := s.read.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = ?", name).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return value, fault(err, "cannot read "+name)
}

// SetMeta keeps value under name.
func (s *Store) SetMeta(ctx context.Context, name, value string) error {
	return s.change("cannot keep "+name, func(tx *sql.Tx) error {
		_, err := tx.Exec("INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", name, value)
		return err
	})
}

func micros(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}

func fromMicros(n sql.NullInt64) time.Time {
	if !n.Valid {
		return time.Time{}
	}
	return time.UnixMicro(n.Int64).UTC()
}

// lookup is what an index holds of a hash.
func lookup(hash [32]byte) int64 {
	var n uint64
	for _, b := range hash[:8] {
		n = n<<8 | uint64(b)
	}
	return int64(n)
}

func placeholders(n int) string { return strings.TrimSuffix(strings.Repeat("?, ", n), ", ") }
