package engine

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"ringfence.dev/ringfence"
)

// access remembers who was let in, so that a request costs no database.
type access struct {
	mu   sync.Mutex
	keys map[uint64][]ringfence.Key // by the beginning of the hash; guarded by mu
	used map[string]time.Time       // by id, not yet in the store; guarded by mu
}

func (a *access) init() {
	a.keys = map[uint64][]ringfence.Key{}
	a.used = map[string]time.Time{}
}

func prefix(hash [32]byte) uint64 { return binary.BigEndian.Uint64(hash[:8]) }

func same(a, b [32]byte) bool { return subtle.ConstantTimeCompare(a[:], b[:]) == 1 }

// Authenticate says who a credential is: an API key, or a sandbox's access token.
// Neither: unauthenticated. Whole hashes are compared in constant time.
func (e *Engine) Authenticate(ctx context.Context, credential string) (ringfence.Principal, error) {
	if key, ok := ringfence.NormalizeAPIKey(credential); ok {
		k, err := e.key(ctx, ringfence.HashSecret(key))
		if err == nil {
			return ringfence.Principal{Project: k.Project, KeyID: k.ID}, nil
		}
		if ringfence.CodeOf(err) != ringfence.CodeNotFound {
			return ringfence.Principal{}, err
		}
		return ringfence.Principal{}, refused("the API key is not valid")
	}
	if credential == "" {
		return ringfence.Principal{}, refused("there is no API key in the request")
	}
	if !ringfence.ValidToken(credential) {
		return ringfence.Principal{}, refused("the credential is neither an API key nor an access token")
	}
	hash := ringfence.HashSecret(credential)
	e.mu.Lock()
	for _, b := range e.live {
		if same(b.tokenHash, hash) || same(b.derivedHash, hash) {
			e.mu.Unlock()
			return ringfence.Principal{Project: b.project, SandboxID: b.id}, nil
		}
	}
	e.mu.Unlock()
	sb, err := e.Store.SandboxByToken(ctx, hash)
	switch {
	case err == nil:
		return ringfence.Principal{Project: sb.Project, SandboxID: sb.ID}, nil
	case ringfence.CodeOf(err) != ringfence.CodeNotFound:
		return ringfence.Principal{}, err
	}
	return ringfence.Principal{}, refused("the access token is not valid")
}

// AccessToken returns a token of a sandbox that lives, the same one each time; it is worth
// what the one is that its creator got, which is kept nowhere. Errors: not_found, sandbox_ended.
func (e *Engine) AccessToken(ctx context.Context, project, id string) (string, error) {
	b, err := e.living(ctx, project, id)
	if err != nil {
		return "", err
	}
	return derivedToken(b.id, b.tokenHash), nil
}

// derivedToken is made of the hash of a sandbox's token, as signatures are: with that one it
// loses its worth.
func derivedToken(id string, tokenHash [32]byte) string {
	mac := hmac.New(sha256.New, tokenHash[:])
	mac.Write([]byte("ringfence access token 2\x00" + id))
	return hex.EncodeToString(mac.Sum(nil))
}

func refused(message string) error {
	return ringfence.Errorf(ringfence.CodeUnauthenticated, "%s", message).
		WithHint("send an API key as `Authorization: Bearer rf_…`; the server printed one at its first start, and `ringfence key create` makes more. The SDKs and the command line take it from RINGFENCE_API_KEY")
}

// key finds a key by its hash and notes its use.
func (e *Engine) key(ctx context.Context, hash [32]byte) (ringfence.Key, error) {
	a := &e.access
	a.mu.Lock()
	for _, k := range a.keys[prefix(hash)] {
		if same(k.Hash, hash) {
			a.used[k.ID] = now()
			a.mu.Unlock()
			return k, nil
		}
	}
	a.mu.Unlock()
	// The key may have been made by another process since.
	k, err := e.Store.KeyByHash(ctx, hash)
	if err != nil {
		return k, err
	}
	a.mu.Lock()
	a.keys[prefix(hash)] = append(a.keys[prefix(hash)], k)
	a.used[k.ID] = now()
	a.mu.Unlock()
	return k, nil
}

func (e *Engine) flushKeyUse() error {
	a := &e.access
	a.mu.Lock()
	used := a.used
	a.used = map[string]time.Time{}
	a.mu.Unlock()
	if len(used) == 0 {
		return nil
	}
	return e.Store.TouchKeys(context.Background(), used)
}

// CreateKey makes a key of a project. Its text is returned here and nowhere else.
func (e *Engine) CreateKey(ctx context.Context, project, name string) (ringfence.Key, string, error) {
	text := ringfence.NewAPIKey()
	k, err := AddKey(ctx, e.Store, project, name, text)
	return k, text, err
}

// AddKey keeps the hash of a key's text. A text that is no key: invalid_argument;
// one that is kept already: already_exists.
func AddKey(ctx context.Context, store Store, project, name, text string) (ringfence.Key, error) {
	text, ok := ringfence.NormalizeAPIKey(text)
	if !ok {
		return ringfence.Key{}, ringfence.Errorf(ringfence.CodeInvalidArgument, "the key is not spelled as one").
			WithHint("a key is rf_ and 32 to 128 hexadecimal digits, an even number of them")
	}
	if len(name) > ringfence.MaxKeyName || !printable(name) {
		return ringfence.Key{}, invalid("name", "name has to be text of at most %d bytes without control characters", ringfence.MaxKeyName)
	}
	k := ringfence.Key{ID: "key_" + ringfence.NewSandboxID()[:12], Project: project, Name: name, Hash: ringfence.HashSecret(text), CreatedAt: now()}
	return k, store.CreateKey(ctx, k)
}

// Keys lists a project's keys, oldest first.
func (e *Engine) Keys(ctx context.Context, project string) ([]ringfence.Key, error) {
	if err := e.flushKeyUse(); err != nil {
		return nil, fmt.Errorf("cannot note the use of keys: %w", err)
	}
	return e.Store.Keys(ctx, project)
}

// DeleteKey makes a key invalid at once. Unknown: not_found; the project's last
// one: failed_precondition.
func (e *Engine) DeleteKey(ctx context.Context, project, id string) error {
	if err := e.Store.DeleteKey(ctx, project, id); err != nil {
		return err
	}
	a := &e.access
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.keys)
	delete(a.used, id)
	return nil
}
