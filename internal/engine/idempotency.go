package engine

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"sync"
	"unicode/utf8"

	"ringfence.dev/ringfence"
)

// maxIdempotencyKey bounds the name of a create, in bytes.
const maxIdempotencyKey = 255

// once lets creates of one name follow each other.
type once struct {
	mu   sync.Mutex
	busy map[string]chan struct{} // by project and name; guarded by mu
}

func (o *once) take(ctx context.Context, name string) (release func(), err error) {
	for {
		o.mu.Lock()
		other := o.busy[name]
		if other == nil {
			mine := make(chan struct{})
			if o.busy == nil {
				o.busy = map[string]chan struct{}{}
			}
			o.busy[name] = mine
			o.mu.Unlock()
			return func() {
				o.mu.Lock()
				delete(o.busy, name)
				o.mu.Unlock()
				close(mine)
			}, nil
		}
		o.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ringfence.Errorf(ringfence.CodeOf(ctx.Err()), "a create of the same Idempotency-Key is under way").WithCause(context.Cause(ctx))
		}
	}
}

// token is a fresh access token, or that of a named create, which is the same each time.
func (r *CreateRequest) token() string {
	if r.IdempotencyKey == "" {
		return ringfence.NewToken()
	}
	mac := hmac.New(sha256.New, []byte(r.Secret))
	mac.Write([]byte("ringfence access token\x00" + r.Project + "\x00" + r.IdempotencyKey + "\x00" + r.fingerprint()))
	return hex.EncodeToString(mac.Sum(nil))
}

// fingerprint tells one request from another.
func (r *CreateRequest) fingerprint() string {
	if r.IdempotencyKey == "" || r.print != "" {
		return r.print
	}
	plain := *r
	plain.Secret = ""
	raw, err := json.Marshal(plain)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// createOnce makes a sandbox unless a create of the same name has.
func (e *Engine) createOnce(ctx context.Context, req CreateRequest) (*ringfence.Sandbox, string, error) {
	key := req.IdempotencyKey
	if len(key) > maxIdempotencyKey || !utf8.ValidString(key) || !printable(key) {
		return nil, "", invalid("Idempotency-Key", "Idempotency-Key has to be text of at most %d bytes", maxIdempotencyKey)
	}
	req.print = req.fingerprint()
	release, err := e.once.take(ctx, req.Project+"\x00"+key)
	if err != nil {
		return nil, "", err
	}
	defer release()
	made, err := e.Store.SandboxByIdempotencyKey(ctx, req.Project, key)
	switch {
	case ringfence.CodeOf(err) == ringfence.CodeNotFound:
		return e.create(ctx, req)
	case err != nil:
		return nil, "", err
	}
	token := req.token()
	if made.Fingerprint != req.fingerprint() || made.TokenHash != ringfence.HashSecret(token) {
		return nil, "", ringfence.Errorf(ringfence.CodeFailedPrecondition, "the Idempotency-Key was used for another request, or with another API key").
			WithField("Idempotency-Key").WithHint("choose another Idempotency-Key")
	}
	sb, err := e.Get(ctx, req.Project, made.ID)
	return sb, token, err
}
