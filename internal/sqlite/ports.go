package sqlite

import (
	"context"
	"database/sql"
)

// SetPublicPort opens a port of a sandbox to everybody, or closes it. Neither is an
// error when it was so already.
func (s *Store) SetPublicPort(_ context.Context, sandbox string, port int, public bool) error {
	return s.change("cannot keep who may reach the port", func(tx *sql.Tx) error {
		statement := "DELETE FROM public_ports WHERE sandbox = ? AND port = ?"
		if public {
			statement = "INSERT OR IGNORE INTO public_ports (sandbox, port) VALUES (?, ?)"
		}
		_, err := tx.Exec(statement, sandbox, port)
		return err
	})
}

// PublicPorts returns the open ports of all sandboxes that have not ended.
func (s *Store) PublicPorts(ctx context.Context) (map[string][]int, error) {
	rows, err := s.read.QueryContext(ctx, "SELECT sandbox, port FROM public_ports JOIN sandboxes ON id = sandbox WHERE ended_at IS NULL ORDER BY port")
	if err != nil {
		return nil, fault(err, "cannot read the public ports")
	}
	defer rows.Close() // rows.Err says what there is to say
	ports := map[string][]int{}
	for rows.Next() {
		var sandbox string
		var port int
		if err := rows.Scan(&sandbox, &port); err != nil {
			return nil, fault(err, "cannot read the public ports")
		}
		ports[sandbox] = append(ports[sandbox], port)
	}
	return ports, fault(rows.Err(), "cannot read the public ports")
}
