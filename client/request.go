package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"ringfence.dev/ringfence"
)

const (
	retries       = 2
	retryBase     = 100 * time.Millisecond
	retryLongest  = 5 * time.Second // a server that asks for more is believed, and the error returned
	maxErrorBytes = 1 << 20
	drainBytes    = 256 << 10 // of an answer's rest, so that its connection can be used again
)

// request is one call of the API.
type request struct {
	method string
	path   string // escaped, from the slash on
	query  url.Values
	body   any       // sent as JSON when not nil
	stream io.Reader // sent as it is when not nil
	size   int64     // of stream: -1 when unknown
	accept string
	header http.Header
	// idempotent requests are sent again after a failed connection or a 503.
	idempotent bool
	// goneOK: that the thing is not there any more is success for a request that was
	// sent again, since the first one may have removed it.
	goneOK ringfence.Code
	what   string // for messages: what was asked, such as "create a sandbox"
}

// call sends r and decodes its answer into out, unless that is nil.
func (c *Client) call(ctx context.Context, r request, out any) error {
	resp, err := c.send(ctx, r) //nolint:bodyclose // drain closes it
	if err != nil {
		return err
	}
	defer drain(resp.Body)
	if out == nil || resp.StatusCode == http.StatusNoContent {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return c.brokenAnswer(ctx, r, resp, err)
	}
	return nil
}

// send sends r, again if that is allowed and needed, and returns a successful
// answer whose body the caller closes.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	var payload []byte
	if r.body != nil {
		var err error
		if payload, err = encode(r.body); err != nil {
			return nil, err
		}
	}
	for attempt := 0; ; attempt++ {
		resp, retryable, err := c.once(ctx, r, payload)
		if err == nil {
			return resp, nil
		}
		if attempt > 0 && r.goneOK != "" && ringfence.CodeOf(err) == r.goneOK {
			return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}, nil
		}
		if !retryable || !r.idempotent || attempt >= retries || ctx.Err() != nil {
			return nil, err
		}
		wait := time.Duration(float64(retryBase<<(2*attempt)) * (0.75 + rand.Float64()/2))
		var e *ringfence.Error
		if errors.As(err, &e) && e.RetryAfterSeconds > 0 {
			wait = time.Duration(e.RetryAfterSeconds) * time.Second
			if wait > retryLongest {
				return nil, err
			}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// once sends r one time. An error is retryable when the connection failed or the
// server is not ready.
func (c *Client) once(ctx context.Context, r request, payload []byte) (resp *http.Response, retryable bool, err error) {
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	var body io.Reader
	switch {
	case payload != nil:
		body = bytes.NewReader(payload)
	case r.stream != nil && r.size != 0:
		body = r.stream
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, false, ringfence.Errorf(ringfence.CodeInvalidArgument, "cannot make the request: %w", err)
	}
	if payload != nil {
		req.Header.Set("Content-Type", "application/json")
		req.GetBody = nil // nothing below may send a body again
	} else if r.stream != nil {
		req.Header.Set("Content-Type", "application/octet-stream")
		req.ContentLength = r.size
		req.GetBody = nil
		if r.size < 0 || r.size >= expectBytes {
			// A refusal arrives before the body is sent, and not as a broken pipe.
			req.Header.Set("Expect", "100-continue")
		}
	}
	req.Header.Set("Accept", first(r.accept, "application/json"))
	req.Header.Set("User-Agent", c.userAgent)
	if c.apiKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.apiKey)
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	resp, err = c.http.Do(req)
	if err != nil {
		return nil, true, c.connectionError(ctx, r, err)
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return resp, false, nil
	}
	defer drain(resp.Body)
	return nil, resp.StatusCode == http.StatusServiceUnavailable, refusal(resp)
}

const expectBytes = 1 << 20

// refusal makes an error of an answer that is none of 2xx.
func refusal(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBytes))
	var w struct {
		Error *wireError `json:"error"`
	}
	var e *ringfence.Error
	if json.Unmarshal(text, &w) == nil && w.Error != nil && w.Error.Code != "" {
		e = w.Error.domain()
	} else {
		e = ringfence.Errorf(codeOfStatus(resp.StatusCode), "the server answered %s with nothing that Ringfence says", resp.Status).
			WithHint("is something between this program and the server, or is %s another server's?", EnvURL)
	}
	e.RequestID = first(e.RequestID, resp.Header.Get("X-Request-Id"))
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		e.RetryAfterSeconds = s
	}
	return e
}

// codeOfStatus guesses a code for an answer that carries none.
func codeOfStatus(status int) ringfence.Code {
	switch status {
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return ringfence.CodeUnavailable
	case http.StatusNotFound:
		return ringfence.CodeRouteNotFound
	}
	for _, row := range ringfence.ErrorTable {
		if row.HTTP == status {
			return row.Code
		}
	}
	return ringfence.CodeInternal
}

// wireError is an error as it crosses the wire.
type wireError struct {
	Code      ringfence.Code `json:"code"`
	Message   string         `json:"message"`
	Hint      string         `json:"hint"`
	Field     string         `json:"field"`
	RequestID string         `json:"request_id"`
}

func (w *wireError) domain() *ringfence.Error {
	return &ringfence.Error{Code: w.Code, Message: w.Message, Hint: w.Hint, Field: w.Field, RequestID: w.RequestID}
}

// connectionError says that no answer came.
func (c *Client) connectionError(ctx context.Context, r request, err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // the URL is in our own message
	}
	if e := contextError(ctx, r); e != nil {
		return e
	}
	e := &ringfence.Error{
		Code:    ringfence.CodeUnavailable,
		Message: "cannot reach the server at " + c.base,
		Hint:    "is `ringfence serve` running? " + EnvURL + " says where",
		Err:     err,
	}
	if !r.idempotent && !notSent(err) {
		e.Message = "the connection to " + c.base + " broke before an answer came"
		e.Hint = "whether the server did what was asked is not known" + maybe(" (", r.what, ")")
	}
	return e
}

// contextError returns the end of the caller's own context as an error, or nil.
func contextError(ctx context.Context, r request) error {
	if ctx.Err() == nil {
		return nil
	}
	e := &ringfence.Error{Code: ringfence.CodeOf(ctx.Err()), Message: "the call was canceled" + maybe(" (", r.what, ")"), Err: ctx.Err()}
	if e.Code == ringfence.CodeDeadlineExceeded {
		e.Message = "the call's own deadline passed before the answer came" + maybe(" (", r.what, ")")
		e.Hint = "its outcome is not known; give the context more time"
	}
	return e
}

func maybe(open, s, end string) string {
	if s == "" {
		return ""
	}
	return open + s + end
}

// brokenAnswer says that an answer began and did not come to its end.
func (c *Client) brokenAnswer(ctx context.Context, r request, resp *http.Response, err error) error {
	if e := contextError(ctx, r); e != nil {
		return e
	}
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	if errors.As(err, &syntax) || errors.As(err, &kind) {
		return &ringfence.Error{Code: ringfence.CodeInternal, Message: "the server's answer is not what the API promises",
			Hint: "do this program and the server have the same version?", RequestID: resp.Header.Get("X-Request-Id"), Err: err}
	}
	return brokenStream(resp.Header.Get("X-Request-Id"), err)
}

// brokenStream is the error for bytes that ended too early.
func brokenStream(requestID string, err error) *ringfence.Error {
	return &ringfence.Error{Code: ringfence.CodeUnavailable, Message: "the connection broke in the middle of the answer",
		Hint: "what was not read is lost; ask again", RequestID: requestID, Err: err}
}

// drain closes body, and reads what little is left first so that its connection lives.
func drain(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, drainBytes)
	_ = body.Close()
}

// escape puts a name into a path as one segment.
func escape(segment string) string {
	s := url.PathEscape(segment)
	if s == "." || s == ".." {
		return strings.ReplaceAll(s, ".", "%2E")
	}
	return s
}

// notSent reports whether err shows that not one byte of the request left: then
// nothing can have happened.
func notSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
