package client

import (
	"net/http"
	"testing"

	"ringfence.dev/ringfence"
)

// Bytes that JSON cannot carry are refused and named; nothing else is run in their place.
func TestTextThatIsNone(t *testing.T) {
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s %s was sent", r.Method, r.URL) })
	sb := &Sandbox{c: c, id: testID}
	for field, cmd := range map[string]Command{
		"command":    {Shell: "echo \xff"},
		"args[1]":    {Args: []string{"echo", "a\xff"}},
		"env.A":      {Shell: "env", Env: map[string]string{"A": "\xff"}},
		"env.\uFFFD": {Shell: "env", Env: map[string]string{"\xff": ""}},
		"cwd":        {Shell: "pwd", WorkDir: "/\xff"},
	} {
		_, err := sb.Run(t.Context(), cmd)
		if e := asError(t, err); e.Code != ringfence.CodeInvalidArgument || e.Field != field || e.Hint == "" {
			t.Errorf("%s: %+v", field, e)
		}
	}
	_, err := c.Create(t.Context(), CreateOptions{Network: &ringfence.NetworkPolicy{DenyOut: []string{"a", "\xff"}}})
	if e := asError(t, err); e.Field != "network.deny_out[1]" {
		t.Errorf("create: %+v", e)
	}
	if _, _, err := c.CreateKey(t.Context(), "\xff"); asError(t, err).Field != "name" {
		t.Errorf("a key's name: %v", err)
	}
}
