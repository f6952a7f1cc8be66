package api

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/engine"
)

// The names that a signed link uses.
const (
	linkExpires   = "rf_expires"
	linkSignature = "rf_signature"
	linkCookie    = "rf_port_link"
	// linkPath comes before the path of a link on a port's own host. No service worker of
	// that host has it in its scope: one that did would read the link as it is opened.
	linkPath = "/.ringfence"
)

// grant is what lets a request through to a port.
type grant struct {
	project string
	who     ringfence.Principal
	until   time.Time       // zero: for as long as it takes
	closed  <-chan struct{} // nil: never
	link    string          // the link out of the query, spelled as the cookie's value
}

// stranger reports whether the request came through a public port, without a credential.
func (g grant) stranger() bool { return g.closed != nil }

// admitPort finds what lets a request through: a credential, a signed link, the cookie
// that it left, or that the port is public.
func (s *Server) admitPort(r *http.Request, p portAddress) (grant, error) {
	refusal := error(ringfence.Errorf(ringfence.CodeUnauthenticated, "port %d of the sandbox is not public, and there is no credential in the request", p.port).
		WithHint("send an API key or the sandbox's token, open a signed link, or have the owner publish the port"))
	if text := credential(r); text != "" {
		who, err := s.Engine.Authenticate(r.Context(), text)
		if err == nil && who.SandboxID != "" && who.SandboxID != p.sandbox {
			err = engine.NoSandbox(p.sandbox)
		}
		if err == nil {
			return grant{project: who.Project, who: who}, nil
		}
		refusal = err // it may have been meant for the program in the sandbox
	}
	link, given, err := linkOfQuery(r.URL.RawQuery)
	if given {
		var g grant
		if err == nil {
			g, err = s.checkLink(p, link)
		}
		if err == nil {
			g.link = link.String()
			return g, nil
		}
		refusal = err
	}
	for _, cookie := range r.Cookies() { // another page may have set more of that name
		if cookie.Name != linkCookie {
			continue
		}
		link, err := parseLink(strings.Cut(cookie.Value, "."))
		if err != nil {
			continue
		}
		g, err := s.checkLink(p, link)
		if err == nil {
			err = sameOrigin(r)
		}
		if err == nil {
			return g, nil
		}
		if !given {
			refusal = err
		}
	}
	if project, closed, ok := s.Engine.PublicPort(p.sandbox, p.port); ok {
		return grant{project: project, closed: closed}, nil
	}
	return grant{}, refusal
}

// sameOrigin refuses what another page makes a browser send with the cookie in it: the
// ports of other sandboxes are the same site.
func sameOrigin(r *http.Request) error {
	header := r.Header
	site, navigates := header.Get("Sec-Fetch-Site"), header.Get("Sec-Fetch-Mode") == "navigate" && header.Get("Sec-Fetch-Dest") == "document"
	switch {
	case header.Get("Origin") != "" && !strings.EqualFold(header.Get("Origin"), origin(r)):
	case site == "" || site == "same-origin" || site == "none":
		return nil
	case navigates && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		return nil
	}
	return ringfence.Errorf(ringfence.CodePermissionDenied, "a page of another origin may not use what a signed link opened").
		WithHint("open the link itself, send an API key, or publish the port")
}

// portLink is a signed link, taken apart.
type portLink struct {
	until     time.Time
	signature []byte
}

func (l portLink) String() string {
	return fmt.Sprintf("%d.%s", l.until.Unix(), hex.EncodeToString(l.signature))
}

// query is what a link adds to a URL.
func (l portLink) query() string {
	return fmt.Sprintf("%s=%d&%s=%s", linkExpires, l.until.Unix(), linkSignature, hex.EncodeToString(l.signature))
}

const signatureBytes = 32

// parseLink reads the parts of a link in their only spelling. The last argument says
// whether there are two.
func parseLink(expires, signature string, both bool) (portLink, error) {
	bad := ringfence.Errorf(ringfence.CodeUnauthenticated, "the signed link cannot be read").WithHint("use it as it was given, or ask for a new one")
	n, err := strconv.ParseInt(expires, 10, 64)
	if !both || err != nil || n <= 0 || n > 1<<40 || strconv.FormatInt(n, 10) != expires {
		return portLink{}, bad
	}
	raw, err := hex.DecodeString(signature)
	if err != nil || len(raw) != signatureBytes || hex.EncodeToString(raw) != signature {
		return portLink{}, bad
	}
	return portLink{time.Unix(n, 0), raw}, nil
}

// linkOfQuery reads the link out of a query; given says that there is at least a part of one.
func linkOfQuery(raw string) (link portLink, given bool, err error) {
	var expires, signature string
	n := 0
	for item := range strings.SplitSeq(raw, "&") {
		name, value, _ := strings.Cut(item, "=")
		if decoded, err := url.QueryUnescape(name); err == nil {
			name = decoded
		}
		switch name {
		case linkExpires:
			expires = value
			n++
		case linkSignature:
			signature = value
			n++
		}
	}
	if n == 0 {
		return portLink{}, false, nil
	}
	link, err = parseLink(expires, signature, n == 2 && expires != "" && signature != "")
	return link, true, err
}

// withoutLink returns a query without the parts of a link; the rest is left as it is.
func withoutLink(raw string) string {
	if !strings.Contains(raw, "rf_") && !strings.Contains(raw, "%") {
		return raw
	}
	var kept []string
	for item := range strings.SplitSeq(raw, "&") {
		name, _, _ := strings.Cut(item, "=")
		if decoded, err := url.QueryUnescape(name); err == nil {
			name = decoded
		}
		if name != linkExpires && name != linkSignature {
			kept = append(kept, item)
		}
	}
	return strings.Join(kept, "&")
}

func (s *Server) checkLink(p portAddress, link portLink) (grant, error) {
	project, err := s.Engine.CheckPort(p.sandbox, p.port, link.until, link.signature)
	return grant{project: project, until: link.until}, err
}

// setLinkCookie lets the browser go on without the link in the URL, until it expires. The
// cookie is the host's alone and goes to this port alone; no script sees it.
func setLinkCookie(h http.Header, r *http.Request, p portAddress, g grant) {
	http.SetCookie(headerOnly{h}, &http.Cookie{
		Name: linkCookie, Value: g.link, Path: p.prefix + "/", Expires: g.until,
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: strings.HasPrefix(origin(r), "https:"),
	})
}

// headerOnly is a ResponseWriter of which only the header is used.
type headerOnly struct{ h http.Header }

func (w headerOnly) Header() http.Header     { return w.h }
func (headerOnly) Write([]byte) (int, error) { return 0, http.ErrNotSupported }
func (headerOnly) WriteHeader(int)           {}

// navigates reports whether a browser opens a page: then the link has to leave its URL,
// where the page could read it.
func navigates(r *http.Request) bool {
	if r.Method != http.MethodGet {
		return false
	}
	if mode := r.Header.Get("Sec-Fetch-Mode"); mode != "" {
		return mode == "navigate"
	}
	return strings.Contains(r.Header.Get("Accept"), "text/html")
}
