package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"

	"ringfence.dev/ringfence"
)

const snapshotColumns = `id, project, name, sandbox, template, image_path, base_env, vcpu, memory_mib, disk_mib,
 user, work_dir, object, bytes, hidden, created_at`

// CreateSnapshot keeps a new snapshot.
func (s *Store) CreateSnapshot(_ context.Context, sn *ringfence.Snapshot) error {
	baseEnv, err := json.Marshal(orEmpty(sn.BaseEnv))
	if err != nil {
		return fault(err, "cannot keep the snapshot")
	}
	return s.change("cannot keep the snapshot", func(tx *sql.Tx) error {
		_, err := tx.Exec("INSERT INTO snapshots ("+snapshotColumns+") VALUES ("+placeholders(16)+")",
			sn.ID, sn.Project, sn.Name, sn.SandboxID, sn.Template, sn.ImagePath, string(baseEnv), sn.Size.VCPU, sn.Size.MemoryMiB, sn.Size.DiskMiB,
			sn.User, sn.WorkDir, sn.Object, sn.Bytes, sn.Hidden, micros(sn.CreatedAt))
		return err
	})
}

func scanSnapshot(row interface{ Scan(...any) error }) (*ringfence.Snapshot, error) {
	var sn ringfence.Snapshot
	var baseEnv []byte
	var created sql.NullInt64
	err := row.Scan(&sn.ID, &sn.Project, &sn.Name, &sn.SandboxID, &sn.Template, &sn.ImagePath, &baseEnv, &sn.Size.VCPU, &sn.Size.MemoryMiB,
		&sn.Size.DiskMiB, &sn.User, &sn.WorkDir, &sn.Object, &sn.Bytes, &sn.Hidden, &created)
	if err != nil {
		return nil, err
	}
	sn.CreatedAt = fromMicros(created)
	return &sn, json.Unmarshal(baseEnv, &sn.BaseEnv)
}

// Snapshot returns one of a project's snapshots. Unknown, or another project's: not_found.
func (s *Store) Snapshot(ctx context.Context, project, id string) (*ringfence.Snapshot, error) {
	sn, err := scanSnapshot(s.read.QueryRowContext(ctx, "SELECT "+snapshotColumns+" FROM snapshots WHERE id = ? AND project = ?", id, project))
	return sn, fault(err, "cannot find the snapshot")
}

// ListSnapshots returns what the filter selects, newest first.
func (s *Store) ListSnapshots(ctx context.Context, f ringfence.SnapshotFilter) ([]*ringfence.Snapshot, error) {
	where, args := []string{"project = ?", "hidden = 0"}, []any{f.Project}
	if f.SandboxID != "" {
		where, args = append(where, "sandbox = ?"), append(args, f.SandboxID)
	}
	if f.Before != nil {
		where, args = append(where, "(created_at, id) < (?, ?)"), append(args, micros(f.Before.CreatedAt), f.Before.ID)
	}
	rows, err := s.read.QueryContext(ctx, "SELECT "+snapshotColumns+" FROM snapshots WHERE "+strings.Join(where, " AND ")+
		" ORDER BY created_at DESC, id DESC LIMIT ?", append(args, f.Limit)...)
	if err != nil {
		return nil, fault(err, "cannot read the snapshots")
	}
	defer rows.Close() // rows.Err says what there is to say
	var list []*ringfence.Snapshot
	for rows.Next() {
		sn, err := scanSnapshot(rows)
		if err != nil {
			return nil, fault(err, "cannot read the snapshots")
		}
		list = append(list, sn)
	}
	return list, fault(rows.Err(), "cannot read the snapshots")
}

// CountSnapshots says how many snapshots a project has.
func (s *Store) CountSnapshots(ctx context.Context, project string) (int, error) {
	var n int
	err := s.read.QueryRowContext(ctx, "SELECT count(*) FROM snapshots WHERE project = ? AND hidden = 0", project).Scan(&n)
	return n, fault(err, "cannot count the snapshots")
}

// DeleteSnapshot forgets a snapshot. Unknown, or another project's: not_found.
func (s *Store) DeleteSnapshot(_ context.Context, project, id string) error {
	return s.change("cannot delete the snapshot", func(tx *sql.Tx) error {
		res, err := tx.Exec("DELETE FROM snapshots WHERE id = ? AND project = ?", id, project)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n > 0 {
			return err
		}
		return sql.ErrNoRows
	})
}

// DeleteHiddenSnapshots forgets the snapshots of operations that a former process did
// not finish.
func (s *Store) DeleteHiddenSnapshots(context.Context) error {
	return s.change("cannot delete snapshots", func(tx *sql.Tx) error {
		_, err := tx.Exec("DELETE FROM snapshots WHERE hidden = 1")
		return err
	})
}

// SnapshotObjects returns the content that snapshots and paused sandboxes refer to.
func (s *Store) SnapshotObjects(ctx context.Context) ([]string, error) {
	rows, err := s.read.QueryContext(ctx, "SELECT object FROM snapshots UNION SELECT object FROM sandboxes WHERE ended_at IS NULL AND object != ''")
	if err != nil {
		return nil, fault(err, "cannot read the snapshots")
	}
	defer rows.Close() // rows.Err says what there is to say
	var list []string
	for rows.Next() {
		var object string
		if err := rows.Scan(&object); err != nil {
			return nil, fault(err, "cannot read the snapshots")
		}
		list = append(list, object)
	}
	return list, fault(rows.Err(), "cannot read the snapshots")
}
