package sqlite

import (
	"context"
	"database/sql"
)

// SetPublicPort opens a port of a sandbox to everybody, or closes it. Neither is an
// error when it was so already. wakes: who comes without a credential wakes the sandbox.
func (s *Store) SetPublicPort(_ context.Context, sandbox string, port int, public, wakes bool) error {
	return s.change("cannot keep who may reach the port", func(tx *sql.Tx) error {
		statement, args := "DELETE FROM public_ports WHERE sandbox = ? AND port = ?", []any{sandbox, port}
		if public {
			statement = "INSERT INTO public_ports (sandbox, port, wakes) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET wakes = excluded.wakes"
			args = append(args, wakes)
		}
		_, err := tx.Exec(statement, args...)
		return err
	})
}

// PublicPorts returns the open ports of all sandboxes that have not ended, and whether
// each wakes its sandbox.
func (s *Store) PublicPorts(ctx context.Context) (map[string]map[int]bool, error) {
	rows, err := s.read.QueryContext(ctx, "SELECT sandbox, port, wakes FROM public_ports JOIN sandboxes ON id = sandbox WHERE ended_at IS NULL ORDER BY port")
	if err != nil {
		return nil, fault(err, "cannot read the public ports")
	}
	defer rows.Close() // rows.Err says what there is to say
	ports := map[string]map[int]bool{}
	for rows.Next() {
		var sandbox string
		var port int
		var wakes bool
		if err := rows.Scan(&sandbox, &port, &wakes); err != nil {
			return nil, fault(err, "cannot read the public ports")
		}
		if ports[sandbox] == nil {
			ports[sandbox] = map[int]bool{}
		}
		ports[sandbox][port] = wakes
	}
	return ports, fault(rows.Err(), "cannot read the public ports")
}
