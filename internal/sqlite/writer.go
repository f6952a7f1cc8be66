package sqlite

import (
	"context"
	"database/sql"
	"errors"
)

// maxBatch bounds how many changes share one commit.
const maxBatch = 128

// change is one caller's writes. They take effect together or not at all.
type change struct {
	what string // "cannot …", for the error
	run  func(*sql.Tx) error
	err  error
	done chan struct{}
}

var errClosed = errors.New("the store is closed")

// change runs fn in a transaction, and returns when that is on the disk. A
// caller that goes away does not undo it: whether a change took effect is always known.
func (s *Store) change(what string, fn func(*sql.Tx) error) error {
	c := &change{what: what, run: fn, done: make(chan struct{})}
	select {
	case s.queue <- c:
	case <-s.closed:
		return fault(errClosed, what)
	}
	select {
	case <-c.done:
		return fault(c.err, what)
	case <-s.done:
		// The writer empties the queue before it ends; what is left came too late.
		select {
		case <-c.done:
			return fault(c.err, what)
		default:
			return fault(errClosed, what)
		}
	}
}

// writer commits changes. All that wait at one time share a transaction, and so
// the fsync, which costs more than all the rest.
func (s *Store) writer() {
	defer close(s.done)
	for {
		var batch []*change
		select {
		case c := <-s.queue:
			batch = append(batch, c)
		case <-s.closed:
			select {
			case c := <-s.queue:
				batch = append(batch, c)
			default:
				return
			}
		}
	more:
		for len(batch) < maxBatch {
			select {
			case c := <-s.queue:
				batch = append(batch, c)
			default:
				break more
			}
		}
		if err := s.commit(batch); err != nil {
			for _, c := range batch {
				if c.err == nil {
					c.err = err
				}
			}
		}
		for _, c := range batch {
			close(c.done)
		}
	}
}

// commit runs a batch in one transaction; each change has a savepoint, so that
// one that fails takes no other with it.
func (s *Store) commit(batch []*change) error {
	ctx := context.Background()
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // after a commit there is nothing to roll back
	for _, c := range batch {
		if _, err := tx.ExecContext(ctx, "SAVEPOINT one"); err != nil {
			return err
		}
		if c.err = c.run(tx); c.err != nil {
			if _, err := tx.ExecContext(ctx, "ROLLBACK TO one"); err != nil {
				return err
			}
		}
		if _, err := tx.ExecContext(ctx, "RELEASE one"); err != nil {
			return err
		}
	}
	return tx.Commit()
}
