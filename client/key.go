package client

import (
	"context"
	"net/http"
	"time"

	"ringfence.dev/ringfence"
)

// Key is an API key, without the key itself: the server keeps only its hash.
type Key struct {
	ID         string
	Name       string
	CreatedAt  time.Time
	LastUsedAt time.Time // zero: never
}

type wireKey struct {
	ID         string   `json:"id"`
	Name       string   `json:"name"`
	Key        Secret   `json:"key"`
	CreatedAt  wireTime `json:"created_at"`
	LastUsedAt wireTime `json:"last_used_at"`
}

func (w wireKey) key() Key {
	return Key{ID: w.ID, Name: w.Name, CreatedAt: w.CreatedAt.Time, LastUsedAt: w.LastUsedAt.Time}
}

// CreateKey makes an API key. The secret is shown this one time.
func (c *Client) CreateKey(ctx context.Context, name string) (Key, Secret, error) {
	body := map[string]string{}
	if name != "" {
		body["name"] = name
	}
	var w wireKey
	err := c.call(ctx, request{method: http.MethodPost, path: "/v1/keys", body: body, what: "make a key"}, &w)
	return w.key(), w.Key, err
}

// Keys lists the API keys.
func (c *Client) Keys(ctx context.Context) ([]Key, error) {
	var w struct {
		Keys []wireKey `json:"keys"`
	}
	if err := c.call(ctx, request{method: http.MethodGet, path: "/v1/keys", idempotent: true}, &w); err != nil {
		return nil, err
	}
	keys := make([]Key, len(w.Keys))
	for i := range w.Keys {
		keys[i] = w.Keys[i].key()
	}
	return keys, nil
}

// DeleteKey makes a key useless. Errors: not_found.
func (c *Client) DeleteKey(ctx context.Context, id string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: "/v1/keys/" + escape(id), idempotent: true, goneOK: ringfence.CodeNotFound}, nil)
}
