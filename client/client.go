// Package client is the Go client of Ringfence. It makes sandboxes on a server,
// runs commands in them and moves files in and out.
//
//	c, err := client.New(client.Options{}) // RINGFENCE_URL, RINGFENCE_API_KEY
//	sandbox, err := c.Create(ctx, client.CreateOptions{})
//	defer sandbox.Kill(context.WithoutCancel(ctx))
//	_, err = sandbox.Files().Write(ctx, "/home/user/cell.py", strings.NewReader(code), client.WriteOptions{})
//	result, err := sandbox.Run(ctx, client.Command{Shell: "python cell.py"})
//
// # Errors
//
// Every error of a call is a *ringfence.Error with a code, a message, a hint and,
// where the server answered, the id of the request. The end of the caller's own
// context keeps context.Canceled or context.DeadlineExceeded in its chain. A command that
// fails is a Result with its exit code, not an error; Result.Err makes one of it.
//
// # Retries
//
// A call that changes nothing, and a removal, is sent again at most twice when the
// connection fails or the server answers 503. Creating a sandbox, running a command
// and writing a file are never sent twice: after a broken connection their outcome
// is unknown, and the error says so.
package client

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"ringfence.dev/ringfence"
)

// DefaultURL is where a server listens unless told otherwise.
const DefaultURL = "http://127.0.0.1:7070"

// Environment variables that Options falls back to.
const (
	EnvURL    = "RINGFENCE_URL"
	EnvAPIKey = "RINGFENCE_API_KEY"
)

// Options says which server to talk to and as whom.
type Options struct {
	// BaseURL is the server's address with scheme: RINGFENCE_URL when empty, else DefaultURL.
	BaseURL string
	// APIKey is an API key, or the access token of one sandbox, which opens that
	// sandbox's commands and files only. RINGFENCE_API_KEY when empty.
	APIKey string
	// HTTPClient sends the requests: one that is tuned for large bodies when nil. Its
	// Timeout should be 0, as it would cut long commands and large files.
	HTTPClient *http.Client
	// UserAgent names the program in the server's log: "ringfence-go" when empty.
	UserAgent string
}

// Client talks to one server. It may be used by several goroutines at once.
type Client struct {
	base      string // scheme://host[/prefix], no slash at the end
	apiKey    string
	http      *http.Client
	userAgent string
}

// New returns a client. It sends nothing; an address that is no http or https URL,
// or a key that no header can carry, is refused with invalid_argument.
func New(o Options) (*Client, error) {
	base := first(o.BaseURL, os.Getenv(EnvURL), DefaultURL)
	u, err := url.Parse(base)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "%q is not the address of a server", base).
			WithHint("give one such as %s, by BaseURL or %s", DefaultURL, EnvURL).WithField("base_url")
	}
	key := strings.TrimSpace(first(o.APIKey, os.Getenv(EnvAPIKey)))
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "the API key holds characters that no key has").
			WithHint("copy it again; keys look like %s and hexadecimal digits", ringfence.APIKeyPrefix).WithField("api_key")
	}
	h := o.HTTPClient
	if h == nil {
		h = &http.Client{Transport: NewTransport()}
	}
	if h.CheckRedirect == nil {
		// The API never redirects: following one would turn a POST into a GET and
		// show the key to another server.
		c := *h
		c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		h = &c
	}
	return &Client{base: strings.TrimRight(u.String(), "/"), apiKey: key, http: h, userAgent: first(o.UserAgent, "ringfence-go")}, nil
}

// NewTransport returns the transport that New uses: connections are kept, buffers
// are large, nothing is compressed.
func NewTransport() *http.Transport {
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: (&net.Dialer{
			Timeout: 10 * time.Second, KeepAlive: 30 * time.Second,
		}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: 2 * time.Second,
		MaxIdleConns:          512,
		MaxIdleConnsPerHost:   256,
		IdleConnTimeout:       90 * time.Second,
		DisableCompression:    true, // bytes of a sandbox come as they are
		ReadBufferSize:        bufferBytes,
		WriteBufferSize:       bufferBytes,
	}
}

// bufferBytes is the size of the buffers on the way of bulk data: large enough that
// a system call costs little beside copying.
const bufferBytes = 256 << 10

// URL returns the server's address.
func (c *Client) URL() string { return c.base }

// CloseIdleConnections closes the connections that no call uses.
func (c *Client) CloseIdleConnections() { c.http.CloseIdleConnections() }

// Health says that a server answered.
type Health struct {
	Status  string // "ok"
	Version string // of the server
}

// Health asks the server whether it is up. It needs no key.
func (c *Client) Health(ctx context.Context) (Health, error) {
	var w struct {
		Status  string `json:"status"`
		Version string `json:"version"`
	}
	err := c.call(ctx, request{method: http.MethodGet, path: "/health", idempotent: true}, &w)
	return Health(w), err
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
