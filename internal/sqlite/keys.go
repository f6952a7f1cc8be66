package sqlite

import (
	"context"
	"crypto/subtle"
	"database/sql"
	"time"

	"ringfence.dev/ringfence"
)

// EnsureProject makes a project unless it exists.
func (s *Store) EnsureProject(ctx context.Context, p ringfence.Project) error {
	var n int
	if err := s.read.QueryRowContext(ctx, "SELECT count(*) FROM projects WHERE id = ?", p.ID).Scan(&n); err != nil {
		return fault(err, "cannot read the project "+p.ID)
	}
	if n == 1 {
		return nil
	}
	return s.change("cannot make the project "+p.ID, func(tx *sql.Tx) error {
		_, err := tx.Exec("INSERT INTO projects (id, name, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
			p.ID, p.Name, micros(p.CreatedAt))
		return err
	})
}

// CreateKey keeps a new key. One with the same text exists: already_exists.
func (s *Store) CreateKey(_ context.Context, k ringfence.Key) error {
	return s.change("cannot make the key", func(tx *sql.Tx) error {
		_, err := tx.Exec("INSERT INTO api_keys (id, project, name, hash, lookup, created_at) VALUES (?, ?, ?, ?, ?, ?)",
			k.ID, k.Project, k.Name, k.Hash[:], lookup(k.Hash), micros(k.CreatedAt))
		return err
	})
}

const keyColumns = "id, project, name, hash, created_at, last_used_at"

func scanKey(row interface{ Scan(...any) error }) (ringfence.Key, error) {
	var k ringfence.Key
	var hash []byte
	var created, used sql.NullInt64
	if err := row.Scan(&k.ID, &k.Project, &k.Name, &hash, &created, &used); err != nil {
		return k, err
	}
	copy(k.Hash[:], hash)
	k.CreatedAt, k.LastUsedAt = fromMicros(created), fromMicros(used)
	return k, nil
}

func (s *Store) keys(ctx context.Context, where string, args ...any) ([]ringfence.Key, error) {
	rows, err := s.read.QueryContext(ctx, "SELECT "+keyColumns+" FROM api_keys WHERE "+where, args...)
	if err != nil {
		return nil, fault(err, "cannot read the keys")
	}
	defer rows.Close() // rows.Err says what there is to say
	var keys []ringfence.Key
	for rows.Next() {
		k, err := scanKey(rows)
		if err != nil {
			return nil, fault(err, "cannot read the keys")
		}
		keys = append(keys, k)
	}
	return keys, fault(rows.Err(), "cannot read the keys")
}

// Keys lists a project's keys, oldest first.
func (s *Store) Keys(ctx context.Context, project string) ([]ringfence.Key, error) {
	return s.keys(ctx, "project = ? ORDER BY created_at, id", project)
}

// CountKeys counts the keys of all projects.
func (s *Store) CountKeys(ctx context.Context) (int, error) {
	var n int
	err := s.read.QueryRowContext(ctx, "SELECT count(*) FROM api_keys").Scan(&n)
	return n, fault(err, "cannot count the keys")
}

// KeyByHash finds a key by its hash, in a time that does not depend on how much
// of another key's hash it shares. Unknown: not_found.
func (s *Store) KeyByHash(ctx context.Context, hash [32]byte) (ringfence.Key, error) {
	candidates, err := s.keys(ctx, "lookup = ?", lookup(hash))
	if err != nil {
		return ringfence.Key{}, err
	}
	for _, k := range candidates {
		if subtle.ConstantTimeCompare(k.Hash[:], hash[:]) == 1 {
			return k, nil
		}
	}
	return ringfence.Key{}, ringfence.Errorf(ringfence.CodeNotFound, "cannot find the key")
}

// DeleteKey removes a project's key. The last one of a project stays:
// failed_precondition, since nobody could come in any more. Unknown: not_found.
func (s *Store) DeleteKey(_ context.Context, project, id string) error {
	return s.change("cannot delete the key", func(tx *sql.Tx) error {
		res, err := tx.Exec("DELETE FROM api_keys WHERE project = ? AND id = ?", project, id)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			return ringfence.Errorf(ringfence.CodeNotFound, "cannot delete the key: there is no key %q", id)
		}
		var left int
		if err := tx.QueryRow("SELECT count(*) FROM api_keys WHERE project = ?", project).Scan(&left); err != nil {
			return err
		}
		if left == 0 {
			return ringfence.Errorf(ringfence.CodeFailedPrecondition, "cannot delete the key: it is the project's last one").
				WithHint("make another one first")
		}
		return nil
	})
}

// TouchKeys notes when keys were last used, by id.
func (s *Store) TouchKeys(_ context.Context, used map[string]time.Time) error {
	return s.change("cannot note the use of keys", func(tx *sql.Tx) error {
		for id, at := range used {
			if _, err := tx.Exec("UPDATE api_keys SET last_used_at = ? WHERE id = ?", micros(at), id); err != nil {
				return err
			}
		}
		return nil
	})
}
