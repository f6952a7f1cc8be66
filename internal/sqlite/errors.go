package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"ringfence.dev/ringfence"
)

// fault is the one place where an error of the database becomes one of the
// domain. what is a "cannot …" phrase. It decides by result code, never by text.
func fault(err error, what string) error {
	var domain *ringfence.Error
	var lite *sqlite.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &domain):
		return domain
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return ringfence.Errorf(ringfence.CodeOf(err), "%s", what).WithCause(err)
	case errors.Is(err, sql.ErrNoRows):
		return ringfence.Errorf(ringfence.CodeNotFound, "%s: there is none", what).WithCause(err)
	case errors.Is(err, errClosed):
		return ringfence.Errorf(ringfence.CodeUnavailable, "%s: the server is shutting down", what).WithCause(err)
	case !errors.As(err, &lite):
		return ringfence.Errorf(ringfence.CodeInternal, "%s", what).WithCause(err)
	}
	// Of the constraints only these are a caller's doing; the others are ours, and internal.
	switch lite.Code() {
	case sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_ROWID:
		return ringfence.Errorf(ringfence.CodeAlreadyExists, "%s: it exists already", what).WithCause(err)
	}
	switch lite.Code() & 0xff { // the primary code; the rest of the bits refine it
	case sqlite3.SQLITE_FULL:
		return retry(ringfence.Errorf(ringfence.CodeResourceExhausted, "%s: the server's disk is full", what).
			WithHint("free space under the data directory").WithCause(err))
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return retry(ringfence.Errorf(ringfence.CodeUnavailable, "%s: the database is busy", what).WithCause(err))
	case sqlite3.SQLITE_INTERRUPT:
		return ringfence.Errorf(ringfence.CodeCanceled, "%s", what).WithCause(err)
	case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
		return ringfence.Errorf(ringfence.CodeInternal, "%s: the database file is damaged", what).
			WithHint("restore it from a backup, or move it away to start with an empty one").WithCause(err)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN:
		return ringfence.Errorf(ringfence.CodeInternal, "%s: the database cannot be written", what).
			WithHint("check the owner and mode of the data directory").WithCause(err)
	}
	return ringfence.Errorf(ringfence.CodeInternal, "%s", what).WithCause(err)
}

func retry(e *ringfence.Error) *ringfence.Error {
	e.RetryAfterSeconds = 1
	return e
}
