package superserve

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/dialect"
)

// What a token of a port is called, and what it begins with.
const (
	previewHeader = "X-Superserve-Preview-Token"
	previewQuery  = "superserve_preview_token"
	previewPrefix = "spv1."
)

// Ports that the SDKs let anybody ask for.
const (
	minPort      = 1024
	reservedPort = 49983
	defaultToken = time.Hour
)

// portOf says which port of a sandbox a request is for: by its host name, or by a path for
// programs that cannot choose one, /superserve/sandboxes/{id}/ports/{port}/….
func portOf(r *http.Request, at place, byHost bool) (p dialect.Port, ok bool) {
	path := r.URL.EscapedPath()
	if byHost {
		if !strings.HasPrefix(path, "/") { // OPTIONS *
			path = "/"
		}
		return dialect.Port{Sandbox: at.sandbox, Port: at.port, Rest: path}, at.port > 0
	}
	const before = Prefix + "/sandboxes/"
	tail, found := strings.CutPrefix(path, before)
	id, tail, _ := strings.Cut(tail, "/")
	tail, isPort := strings.CutPrefix(tail, "ports/")
	digits, rest, _ := strings.Cut(tail, "/")
	port, valid := parsePort(digits)
	if !found || !isPort || !valid || !ringfence.ValidSandboxID(id) {
		return p, false
	}
	return dialect.Port{Sandbox: id, Port: port, Prefix: before + id + "/ports/" + digits, Rest: "/" + rest}, true
}

// parsePort reads a port in its only spelling.
func parsePort(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return int(n), err == nil && n > 0 && strconv.FormatUint(n, 10) == s
}

// preview proxies a request for a port. A token becomes the server's own signed link, which
// does the rest.
func (s *server) preview(w dialect.Answer, r *http.Request, port dialect.Port) {
	token := r.Header.Get(previewHeader)
	query := r.URL.RawQuery
	if strings.Contains(query, previewQuery) {
		var kept []string
		for item := range strings.SplitSeq(query, "&") {
			if value, ok := strings.CutPrefix(item, previewQuery+"="); ok {
				token = value
			} else if item != "" {
				kept = append(kept, item)
			}
		}
		query = strings.Join(kept, "&")
	}
	to := r.WithContext(r.Context())
	to.Header = r.Header.Clone()
	to.Header.Del(previewHeader)
	if token, ok := strings.CutPrefix(token, previewPrefix); ok {
		expires, signature, _ := strings.Cut(token, ".")
		link := url.Values{"rf_expires": {expires}, "rf_signature": {signature}}.Encode()
		if query != "" {
			link = query + "&" + link
		}
		query = link
	}
	u := *r.URL
	u.RawQuery = query
	to.URL = &u
	s.ServePort(w, to, port)
}

type portBody struct {
	Port    int    `json:"port"`
	Access  string `json:"access"`
	Version int    `json:"token_version"`
}

func (c *call) listPorts() error {
	if _, err := c.living(); err != nil {
		return err
	}
	all, _, err := c.Engine.Ports(c.r.Context(), c.who.Project, c.sandbox)
	if err != nil {
		return err
	}
	out := struct {
		PreviewAccess string     `json:"preview_access"`
		Ports         []portBody `json:"ports"`
	}{"public", []portBody{}}
	for _, p := range all {
		if p.Public {
			out.Ports = append(out.Ports, portBody{p.Port, "public", 1})
		}
	}
	return dialect.Reply(c.w, http.StatusOK, out)
}

func validPort(port int) error {
	if port < minPort || port > 65535 || port == reservedPort {
		return invalid("port", "port has to be from %d to 65535, and not %d", minPort, reservedPort)
	}
	return nil
}

func (c *call) portOfPath() (int, error) {
	port, err := strconv.Atoi(c.r.PathValue("port"))
	if err != nil {
		return 0, invalid("port", "%q is no port", cut(c.r.PathValue("port")))
	}
	return port, validPort(port)
}

// publishPort opens a port to everybody, or closes it to all but those with a token.
func (c *call) publishPort() error {
	var in struct {
		Port   int     `json:"port"`
		Access *string `json:"access"`
	}
	if err := dialect.Decode(c.w, c.r, c.MaxBody, &in); err != nil {
		return err
	}
	if err := validPort(in.Port); err != nil {
		return err
	}
	body := portBody{in.Port, "public", 1}
	if in.Access != nil && *in.Access != "" {
		if body.Access = *in.Access; body.Access != "public" && body.Access != "private" {
			return invalid("access", "access is %q; it has to be public or private", cut(body.Access))
		}
	}
	if _, err := c.living(); err != nil {
		return err
	}
	if err := c.Engine.PublishPort(c.r.Context(), c.who.Project, c.sandbox, in.Port, body.Access == "public", false); err != nil {
		return err
	}
	return dialect.Reply(c.w, http.StatusOK, body)
}

func (c *call) unpublishPort() error {
	port, err := c.portOfPath()
	if err != nil {
		return err
	}
	if _, err := c.living(); err != nil {
		return err
	}
	if err := c.Engine.PublishPort(c.r.Context(), c.who.Project, c.sandbox, port, false, false); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// portToken makes a token of a port that is not public.
func (c *call) portToken() error {
	port, err := c.portOfPath()
	if err != nil {
		return err
	}
	var in struct {
		Expires *int64 `json:"expires_in_seconds"`
	}
	if err := dialect.Decode(c.w, c.r, c.MaxBody, &in); err != nil {
		return err
	}
	life := defaultToken
	if in.Expires != nil {
		if *in.Expires < 1 || *in.Expires > ringfence.MaxLinkSeconds {
			return invalid("expires_in_seconds", "expires_in_seconds has to be from 1 to %d", ringfence.MaxLinkSeconds)
		}
		life = time.Duration(*in.Expires) * time.Second
	}
	if _, err := c.living(); err != nil {
		return err
	}
	if _, _, public := c.Engine.PublicPort(c.sandbox, port); public {
		return ringfence.Errorf(ringfence.CodeFailedPrecondition, "port %d is public, and needs no token", port)
	}
	until := time.Now().Add(life).Truncate(time.Second)
	signature, err := c.Engine.SignPort(c.r.Context(), c.who.Project, c.sandbox, port, until)
	if err != nil {
		return err
	}
	return dialect.Reply(c.w, http.StatusOK, map[string]any{
		"token": fmt.Sprintf("%s%d.%s", previewPrefix, until.Unix(), hex.EncodeToString(signature)), "port": port, "header": previewHeader,
		"query_param": previewQuery, "access": "private", "preview_access": "public", "token_version": 1, "expires_at": ringfence.FormatTime(until),
	})
}

func (c *call) rotateToken() error {
	return notSupported("port", "tokens of ports cannot be rotated").WithHint("give them a short life with expires_in_seconds")
}
