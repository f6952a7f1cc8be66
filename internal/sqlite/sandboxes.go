package sqlite

import (
	"context"
	"crypto/subtle"
	"database/sql"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"ringfence.dev/ringfence"
)

const sandboxColumns = `id, project, name, template, state, reason, detail, vcpu, memory_mib, disk_mib,
 env, metadata, user, work_dir, network, created_at, started_at, ended_at, expires_at, generation, token_hash,
 image_path, base_env, paused_at, timeout, on_timeout, idle_timeout, auto_delete, no_auto_resume, object,
 fingerprint, idempotency_key, fixed_timeout`

// CreateSandbox keeps a new sandbox.
func (s *Store) CreateSandbox(_ context.Context, sb *ringfence.Sandbox) error {
	env, err := json.Marshal(orEmpty(sb.Env))
	if err != nil {
		return fault(err, "cannot keep the sandbox")
	}
	metadata, err := json.Marshal(orEmpty(sb.Metadata))
	if err != nil {
		return fault(err, "cannot keep the sandbox")
	}
	baseEnv, err := json.Marshal(orEmpty(sb.BaseEnv))
	if err != nil {
		return fault(err, "cannot keep the sandbox")
	}
	network, err := json.Marshal(sb.Network)
	if err != nil {
		return fault(err, "cannot keep the sandbox")
	}
	return s.change("cannot keep the sandbox", func(tx *sql.Tx) error {
		_, err := tx.Exec("INSERT INTO sandboxes ("+sandboxColumns+", token_lookup) VALUES ("+placeholders(34)+")",
			sb.ID, sb.Project, sb.Name, sb.Template, sb.State, sb.Reason, sb.Detail,
			sb.Size.VCPU, sb.Size.MemoryMiB, sb.Size.DiskMiB, string(env), string(metadata), sb.User, sb.WorkDir, string(network),
			micros(sb.CreatedAt), micros(sb.StartedAt), micros(sb.EndedAt), micros(sb.ExpiresAt), sb.Generation,
			sb.TokenHash[:], sb.ImagePath, string(baseEnv), micros(sb.PausedAt), span(sb.Deadlines.Timeout), onTimeout(sb.Deadlines),
			span(sb.Deadlines.IdleTimeout), autoDelete(sb.Deadlines), sb.Deadlines.NoAutoResume, sb.Object,
			sb.Fingerprint, sql.NullString{String: sb.IdempotencyKey, Valid: sb.IdempotencyKey != ""}, sb.Deadlines.FixedTimeout, lookup(sb.TokenHash))
		return err
	})
}

// SetDeadlines changes what happens to a sandbox by itself, in whatever state it is.
// Unknown: not_found.
func (s *Store) SetDeadlines(_ context.Context, id string, d ringfence.Deadlines, expires time.Time) error {
	return s.change("cannot change the sandbox's deadlines", func(tx *sql.Tx) error {
		res, err := tx.Exec("UPDATE sandboxes SET timeout = ?, on_timeout = ?, idle_timeout = ?, auto_delete = ?, no_auto_resume = ?, fixed_timeout = ?, expires_at = ? WHERE id = ?",
			span(d.Timeout), onTimeout(d), span(d.IdleTimeout), autoDelete(d), d.NoAutoResume, d.FixedTimeout, micros(expires), id)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n > 0 {
			return err
		}
		return sql.ErrNoRows
	})
}

// span is how a duration is kept whose 0 means none.
func span(d time.Duration) any {
	if d <= 0 {
		return nil
	}
	return d.Microseconds()
}

func autoDelete(d ringfence.Deadlines) any {
	if d.AutoDelete == nil {
		return nil
	}
	return d.AutoDelete.Microseconds()
}

func onTimeout(d ringfence.Deadlines) string {
	if d.OnTimeout == "" {
		return string(ringfence.OnTimeoutKill)
	}
	return string(d.OnTimeout)
}

func fromSpan(n sql.NullInt64) time.Duration { return time.Duration(n.Int64) * time.Microsecond }

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

func scanSandbox(row interface{ Scan(...any) error }) (*ringfence.Sandbox, error) {
	var sb ringfence.Sandbox
	var env, metadata, network, hash, baseEnv []byte
	var named sql.NullString
	var created, started, ended, expires, paused, timeout, idle, deletion sql.NullInt64
	err := row.Scan(&sb.ID, &sb.Project, &sb.Name, &sb.Template, &sb.State, &sb.Reason, &sb.Detail,
		&sb.Size.VCPU, &sb.Size.MemoryMiB, &sb.Size.DiskMiB, &env, &metadata, &sb.User, &sb.WorkDir, &network,
		&created, &started, &ended, &expires, &sb.Generation, &hash,
		&sb.ImagePath, &baseEnv, &paused, &timeout, &sb.Deadlines.OnTimeout, &idle, &deletion, &sb.Deadlines.NoAutoResume, &sb.Object,
		&sb.Fingerprint, &named, &sb.Deadlines.FixedTimeout)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(env, &sb.Env); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(metadata, &sb.Metadata); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(network, &sb.Network); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(baseEnv, &sb.BaseEnv); err != nil {
		return nil, err
	}
	sb.IdempotencyKey = named.String
	copy(sb.TokenHash[:], hash)
	sb.CreatedAt, sb.StartedAt = fromMicros(created), fromMicros(started)
	sb.EndedAt, sb.ExpiresAt = fromMicros(ended), fromMicros(expires)
	sb.PausedAt = fromMicros(paused)
	sb.Deadlines.Timeout, sb.Deadlines.IdleTimeout = fromSpan(timeout), fromSpan(idle)
	if deletion.Valid {
		after := fromSpan(deletion)
		sb.Deadlines.AutoDelete = &after
	}
	return &sb, nil
}

func (s *Store) sandboxes(ctx context.Context, where string, args ...any) ([]*ringfence.Sandbox, error) {
	rows, err := s.read.QueryContext(ctx, "SELECT "+sandboxColumns+" FROM sandboxes WHERE "+where, args...)
	if err != nil {
		return nil, fault(err, "cannot read the sandboxes")
	}
	defer rows.Close() // rows.Err says what there is to say
	var list []*ringfence.Sandbox
	for rows.Next() {
		sb, err := scanSandbox(rows)
		if err != nil {
			return nil, fault(err, "cannot read the sandboxes")
		}
		list = append(list, sb)
	}
	return list, fault(rows.Err(), "cannot read the sandboxes")
}

// Sandbox returns one of a project's sandboxes, ended ones too. Unknown, or
// another project's: not_found.
func (s *Store) Sandbox(ctx context.Context, project, id string) (*ringfence.Sandbox, error) {
	sb, err := scanSandbox(s.read.QueryRowContext(ctx, "SELECT "+sandboxColumns+" FROM sandboxes WHERE id = ? AND project = ?", id, project))
	return sb, fault(err, "cannot find the sandbox")
}

// SandboxByToken finds a sandbox by the hash of its access token, in a time that
// does not depend on how much of another hash it shares. Unknown: not_found.
func (s *Store) SandboxByToken(ctx context.Context, hash [32]byte) (*ringfence.Sandbox, error) {
	candidates, err := s.sandboxes(ctx, "token_lookup = ? ORDER BY created_at DESC", lookup(hash))
	if err != nil {
		return nil, err
	}
	for _, sb := range candidates {
		if subtle.ConstantTimeCompare(sb.TokenHash[:], hash[:]) == 1 {
			return sb, nil
		}
	}
	return nil, ringfence.Errorf(ringfence.CodeNotFound, "cannot find the sandbox")
}

// SandboxByIdempotencyKey finds the sandbox that a create of that name made. Unknown: not_found.
func (s *Store) SandboxByIdempotencyKey(ctx context.Context, project, key string) (*ringfence.Sandbox, error) {
	sb, err := scanSandbox(s.read.QueryRowContext(ctx, "SELECT "+sandboxColumns+" FROM sandboxes WHERE project = ? AND idempotency_key = ?", project, key))
	return sb, fault(err, "cannot find the sandbox")
}

// LiveSandboxes returns the sandboxes of all projects that have not ended.
func (s *Store) LiveSandboxes(ctx context.Context) ([]*ringfence.Sandbox, error) {
	return s.sandboxes(ctx, "ended_at IS NULL ORDER BY created_at")
}

// ListSandboxes returns what the filter selects, newest first.
func (s *Store) ListSandboxes(ctx context.Context, f ringfence.SandboxFilter) ([]*ringfence.Sandbox, error) {
	where, args := []string{"project = ?"}, []any{f.Project}
	if len(f.States) == 0 {
		where = append(where, "ended_at IS NULL")
	} else {
		where = append(where, "state IN ("+placeholders(len(f.States))+")")
		for _, state := range f.States {
			args = append(args, state)
		}
	}
	for key, value := range f.Metadata {
		where = append(where, "EXISTS (SELECT 1 FROM json_each(metadata) AS m WHERE m.key = ? AND m.value = ?)")
		args = append(args, key, value)
	}
	if f.Before != nil {
		where = append(where, "(created_at, id) < (?, ?)")
		args = append(args, micros(f.Before.CreatedAt), f.Before.ID)
	}
	args = append(args, f.Limit)
	return s.sandboxes(ctx, strings.Join(where, " AND ")+" ORDER BY created_at DESC, id DESC LIMIT ?", args...)
}

// MoveSandbox changes a sandbox's state and returns its new generation. It is a
// compare-and-set on id, generation and state: failed_precondition when another
// change came first. The row of a sandbox that ended loses its env.
func (s *Store) MoveSandbox(_ context.Context, m ringfence.Move) (int64, error) {
	if !ringfence.CanMove(m.From, m.To) {
		return 0, ringfence.Errorf(ringfence.CodeInternal, "cannot move a sandbox from %s to %s", m.From, m.To)
	}
	set := []string{"state = ?", "reason = ?", "detail = ?", "generation = generation + 1"}
	args := []any{m.To, m.Reason, m.Detail}
	if m.To == ringfence.StateRunning && m.From == ringfence.StateStarting {
		set, args = append(set, "started_at = ?"), append(args, micros(m.At))
	}
	switch {
	case m.To.Ended():
		// An end that follows another keeps the first one's time.
		set, args = append(set, "ended_at = coalesce(ended_at, ?)", "env = '{}'", "object = ''"), append(args, micros(m.At))
	case m.To == ringfence.StateRunning:
		set, args = append(set, "object = ''", "paused_at = NULL", "expires_at = ?"), append(args, micros(m.ExpiresAt))
	case m.To == ringfence.StatePaused && m.From == ringfence.StatePausing:
		set, args = append(set, "paused_at = ?", "expires_at = CASE WHEN fixed_timeout THEN expires_at END"), append(args, micros(m.At))
	}
	if m.Reason == ringfence.ReasonStartFailed {
		set = append(set, "idempotency_key = NULL") // it may be tried again
	}
	if m.Object != "" {
		set, args = append(set, "object = ?"), append(args, m.Object)
	}
	args = slices.Concat(args, []any{m.ID, m.Generation, m.From})
	err := s.change("cannot change the sandbox's state", func(tx *sql.Tx) error {
		res, err := tx.Exec("UPDATE sandboxes SET "+strings.Join(set, ", ")+" WHERE id = ? AND generation = ? AND state = ?", args...)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			return ringfence.Errorf(ringfence.CodeFailedPrecondition,
				"cannot change the sandbox's state from %s to %s: another change came first", m.From, m.To)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return m.Generation + 1, nil
}

// PurgeSandboxes forgets the sandboxes that ended before a time, and says how many.
func (s *Store) PurgeSandboxes(_ context.Context, endedBefore time.Time) (int64, error) {
	var n int64
	err := s.change("cannot purge the sandboxes", func(tx *sql.Tx) error {
		res, err := tx.Exec("DELETE FROM sandboxes WHERE ended_at < ?", micros(endedBefore))
		if err != nil {
			return err
		}
		n, err = res.RowsAffected()
		return err
	})
	return n, err
}
