package engine

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"

	"ringfence.dev/ringfence"
)

// FileOperation is what a signed URL opens.
type FileOperation string

// The operations.
const (
	OperationRead  FileOperation = "read"
	OperationWrite FileOperation = "write"
)

// MaxSignatureLife is how long a signed URL is good at most.
const MaxSignatureLife = 7 * 24 * time.Hour

// SignFile returns the signature that opens one operation on one file, without a key,
// until a moment. It is made of a secret of the sandbox: with the sandbox, or with its
// access token, it loses its worth.
func (e *Engine) SignFile(ctx context.Context, f FileRef, op FileOperation, expires time.Time) (string, error) {
	if op != OperationRead && op != OperationWrite {
		return "", invalid("operation", "operation has to be read or write")
	}
	if err := validPath("path", f.Path); err != nil {
		return "", err
	}
	if f.User != "" && !userRule.MatchString(f.User) {
		return "", invalid("user", "user is neither a user's name nor a number")
	}
	b, err := e.reach(ctx, f.Project, f.Sandbox)
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(b.fileSignature(f, op, expires.Unix())), nil
}

// VerifyFile says who a signature stands for: the sandbox, for that operation on that
// file. Anything else is unauthenticated, a moment that has passed signature_expired.
func (e *Engine) VerifyFile(f FileRef, op FileOperation, expires int64, signature string) (ringfence.Principal, error) {
	wrong := ringfence.Errorf(ringfence.CodeUnauthenticated, "the signature of the URL is not valid").
		WithHint("it opens one operation on one file of one sandbox that lives; ask for another one")
	got, err := hex.DecodeString(signature)
	if err != nil || len(got) != sha256.Size {
		return ringfence.Principal{}, wrong
	}
	e.mu.Lock()
	b := e.live[f.Sandbox]
	e.mu.Unlock()
	if b == nil || !hmac.Equal(got, b.fileSignature(f, op, expires)) {
		return ringfence.Principal{}, wrong
	}
	if now().Unix() >= expires {
		return ringfence.Principal{}, ringfence.Errorf(ringfence.CodeSignatureExpired, "the URL was good until %s", time.Unix(expires, 0).UTC().Format(time.RFC3339)).
			WithHint("ask for another one")
	}
	return ringfence.Principal{Project: b.project, SandboxID: b.id}, nil
}

// fileSignature signs each part with its length, so that no two requests are signed alike.
func (b *box) fileSignature(f FileRef, op FileOperation, expires int64) []byte {
	key := hmac.New(sha256.New, b.tokenHash[:])
	key.Write([]byte("ringfence file url 1"))
	sum := hmac.New(sha256.New, key.Sum(nil))
	for _, part := range []string{b.id, string(op), f.Path, f.User} {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		sum.Write(length[:])
		sum.Write([]byte(part))
	}
	var moment [8]byte
	binary.BigEndian.PutUint64(moment[:], uint64(expires))
	sum.Write(moment[:])
	return sum.Sum(nil)
}
