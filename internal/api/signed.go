package api

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/engine"
)

func (c *call) signFile() error {
	var in struct {
		Path       string                `json:"path"`
		PathBase64 string                `json:"path_base64"`
		Operation  *engine.FileOperation `json:"operation"`
		Expires    *int64                `json:"expires_in_seconds"`
		User       string                `json:"user"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	path, err := pathOf("path", in.Path, in.PathBase64)
	if err != nil {
		return err
	}
	if in.Operation == nil {
		return invalid("operation", "operation is missing").WithHint("it is read or write")
	}
	life := int64(3600)
	if in.Expires != nil {
		life = *in.Expires
	}
	if life < 1 || life > int64(engine.MaxSignatureLife/time.Second) {
		return invalid("expires_in_seconds", "expires_in_seconds has to be from 1 to %d", int64(engine.MaxSignatureLife/time.Second))
	}
	expires := time.Now().Add(time.Duration(life) * time.Second).Truncate(time.Second)
	f := c.file(path, in.User)
	signature, err := c.Engine.SignFile(c.r.Context(), f, *in.Operation, expires)
	if err != nil {
		return err
	}
	query := url.Values{"operation": {string(*in.Operation)}, "expires": {strconv.FormatInt(expires.Unix(), 10)}, "signature": {signature}}
	if utf8.ValidString(path) {
		query.Set("path", path)
	} else {
		query.Set("path_base64", base64.StdEncoding.EncodeToString([]byte(path)))
	}
	if in.User != "" {
		query.Set("user", in.User)
	}
	scheme := "http"
	if c.r.TLS != nil || c.r.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	return c.reply(http.StatusOK, struct {
		URL       string  `json:"url"`
		ExpiresAt *string `json:"expires_at"`
	}{scheme + "://" + c.r.Host + "/v1/sandboxes/" + f.Sandbox + "/files?" + query.Encode(), wireTime(expires.UTC())})
}

// signedBy says whom the signature in a request's URL stands for. signed: there is one,
// and nothing else that the request brings lets it in.
func (c *call) signedBy(rt Route) (who ringfence.Principal, signed bool, err error) {
	if rt.Pattern != "/v1/sandboxes/{id}/files" {
		return who, false, nil
	}
	query, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil || !query.Has("signature") {
		return who, false, nil // admit refuses what cannot be read
	}
	op := map[string]engine.FileOperation{"GET": engine.OperationRead, "PUT": engine.OperationWrite, "POST": engine.OperationWrite}[rt.Method]
	refused := ringfence.Errorf(ringfence.CodeUnauthenticated, "the signature of the URL is not for this").
		WithHint("it opens one operation on one file, and nothing may be added")
	if op == "" || query.Get("operation") != string(op) || query.Has("owner") || query.Has("mode") {
		return who, true, refused
	}
	expires, err := strconv.ParseInt(query.Get("expires"), 10, 64)
	if err != nil || strconv.FormatInt(expires, 10) != query.Get("expires") {
		return who, true, refused
	}
	path, err := pathOf("path", query.Get("path"), query.Get("path_base64"))
	if err != nil {
		return who, true, refused
	}
	who, err = c.Engine.VerifyFile(c.file(path, query.Get("user")), op, expires, query.Get("signature"))
	return who, true, err
}
