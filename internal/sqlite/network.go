package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"

	"ringfence.dev/ringfence"
)

// SetNetwork replaces the policy of a sandbox that lives; not_found when there is none.
func (s *Store) SetNetwork(_ context.Context, id string, p ringfence.NetworkPolicy) error {
	raw, err := json.Marshal(p)
	if err != nil {
		return fault(err, "cannot keep the network policy")
	}
	return s.change("cannot keep the network policy", func(tx *sql.Tx) error {
		res, err := tx.Exec("UPDATE sandboxes SET network = ? WHERE id = ? AND ended_at IS NULL", string(raw), id)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return ringfence.Errorf(ringfence.CodeNotFound, "cannot keep the network policy: there is no such sandbox").WithCause(err)
		}
		return nil
	})
}
