package api

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/coder/websocket"

	"ringfence.dev/ringfence"
)

// takesTokenProtocol reports whether a route is a WebSocket, whose credential may be in
// the subprotocols.
func takesTokenProtocol(rt Route) bool {
	return strings.HasSuffix(rt.Pattern, "/connect") || strings.HasSuffix(rt.Pattern, "/tcp/{port}")
}

// protocols returns the subprotocols that the client offers.
func protocols(r *http.Request) []string {
	var all []string
	for item := range strings.SplitSeq(strings.Join(r.Header.Values("Sec-WebSocket-Protocol"), ","), ",") {
		all = append(all, strings.TrimSpace(item))
	}
	return all
}

// tokenOfProtocol returns the credential among the subprotocols, or "".
func tokenOfProtocol(r *http.Request) string {
	for _, p := range protocols(r) {
		if token, ok := strings.CutPrefix(p, tokenProtocol); ok {
			return token
		}
	}
	return ""
}

// upgrade makes a WebSocket of the request. What is refused is refused as ever, before.
//
// Nothing ambient lets anybody in here, no cookie and no address: a page has to know a
// key to come this far. All the same only pages of this server's own origin may, since a
// page of another's, or of a sandbox's ("null"), has no business with the API.
func (c *call) upgrade(protocol string) (*websocket.Conn, error) {
	header := c.r.Header
	switch {
	case !strings.EqualFold(header.Get("Upgrade"), "websocket") || !c.r.ProtoAtLeast(1, 1):
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "this is a WebSocket, and the request is no handshake of one").
			WithHint("connect with a WebSocket client, by HTTP/1.1 and the subprotocol %s", protocol)
	case header.Get("Sec-WebSocket-Version") != "13" || header.Get("Sec-WebSocket-Key") == "":
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "the handshake is not one of WebSocket version 13")
	case !offers(protocols(c.r), protocol):
		return nil, invalid("Sec-WebSocket-Protocol", "the subprotocol %s is not among those offered", protocol).
			WithHint("offer it; a browser offers %sTOKEN beside it", tokenProtocol)
	}
	if origin := header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		if err != nil || !strings.EqualFold(u.Host, c.r.Host) || u.Host == "" {
			return nil, ringfence.Errorf(ringfence.CodePermissionDenied, "a page of %q may not connect here", short(origin)).
				WithHint("serve the page from this server's own origin")
		}
	}
	conn, err := websocket.Accept(c.w, c.r, &websocket.AcceptOptions{
		Subprotocols: []string{protocol}, InsecureSkipVerify: true, // the origin was looked at
		CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil && c.w.status == 0 {
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "the handshake cannot be read").WithCause(err)
	}
	return conn, err
}

func offers(all []string, wanted string) bool {
	for _, p := range all {
		if strings.EqualFold(p, wanted) {
			return true
		}
	}
	return false
}
