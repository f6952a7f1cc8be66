package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"

	"ringfence.dev/ringfence"
)

// SetNetwork replaces the policy of a sandbox that lives; not_found when there is none.
func (s *Store) SetNetwork(_ context.Context, id string, p ringfence.NetworkPolicy) error {
	return s.setColumn(id, "network", "the network policy", p)
}

// SetMetadata replaces the metadata of a sandbox that lives. Otherwise: not_found.
func (s *Store) SetMetadata(_ context.Context, id string, metadata map[string]string) error {
	return s.setColumn(id, "metadata", "the metadata", orEmpty(metadata))
}

// setColumn keeps a value as JSON in a column of a sandbox that lives.
func (s *Store) setColumn(id, column, what string, value any) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return fault(err, "cannot keep "+what)
	}
	return s.change("cannot keep "+what, func(tx *sql.Tx) error {
		res, err := tx.Exec("UPDATE sandboxes SET "+column+" = ? WHERE id = ? AND ended_at IS NULL", string(raw), id)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return ringfence.Errorf(ringfence.CodeNotFound, "cannot keep %s: there is no such sandbox", what).WithCause(err)
		}
		return nil
	})
}
