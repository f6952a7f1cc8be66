package api

import (
	"strings"
	"time"

	"ringfence.dev/ringfence"
)

// portPattern is the row of the route table that stands for every port; ServeHTTP
// looks for it before the mux does, which would tidy the path up.
const portPattern = "/v1/sandboxes/{id}/ports/{port}/{rest...}"

type portWire struct {
	Port    int     `json:"port"`
	Address *string `json:"address"`
	Public  bool    `json:"public"`
	Wakes   bool    `json:"wakes"`
	PID     *int    `json:"pid"`
	Command *string `json:"command"`
	URL     string  `json:"url"`
}

func (c *call) portWire(p ringfence.Port) portWire {
	command, _ := text([]byte(p.Command))
	return portWire{Port: p.Port, Address: null(p.Address), Public: p.Public, Wakes: p.Wakes, PID: null(p.PID), Command: null(command),
		URL: c.portURL(c.r, c.r.PathValue("id"), p.Port, "/")}
}

func (c *call) pathPort() (int, error) {
	port, ok := parsePort(c.r.PathValue("port"))
	if !ok {
		return 0, invalid("port", "%q is not a port", short(c.r.PathValue("port"))).WithHint("a port is a number from 1 to 65535")
	}
	return port, nil
}

func (c *call) listPorts() error {
	list, truncated, err := c.Engine.Ports(c.r.Context(), c.who.Project, c.r.PathValue("id"))
	if err != nil {
		return err
	}
	out := struct {
		Ports     []portWire `json:"ports"`
		Truncated bool       `json:"truncated"`
	}{[]portWire{}, truncated}
	for _, p := range list {
		out.Ports = append(out.Ports, c.portWire(p))
	}
	return c.reply(200, out)
}

func (c *call) getPort() error {
	port, err := c.pathPort()
	if err != nil {
		return err
	}
	p, err := c.Engine.Port(c.r.Context(), c.who.Project, c.r.PathValue("id"), port)
	if err != nil {
		return err
	}
	return c.reply(200, c.portWire(p))
}

func (c *call) publishPort() error {
	port, err := c.pathPort()
	if err != nil {
		return err
	}
	var body struct {
		Public *bool `json:"public"`
		Wakes  bool  `json:"wakes"`
	}
	if err := c.decode(&body); err != nil {
		return err
	}
	if body.Public == nil {
		return invalid("public", "public is missing").WithHint("true opens the port to everybody, false to those with a credential")
	}
	if body.Wakes && !*body.Public {
		return invalid("wakes", "wakes is for a port that is public")
	}
	id := c.r.PathValue("id")
	if err := c.Engine.PublishPort(c.r.Context(), c.who.Project, id, port, *body.Public, body.Wakes); err != nil {
		return err
	}
	return c.getPort()
}

// defaultLink is how long a link opens a port unless its maker says otherwise.
const defaultLink = time.Hour

func (c *call) createLink() error {
	var body struct {
		Port             *int   `json:"port"`
		Path             string `json:"path"`
		ExpiresInSeconds *int64 `json:"expires_in_seconds"`
	}
	if err := c.decode(&body); err != nil {
		return err
	}
	life := defaultLink
	if n := body.ExpiresInSeconds; n != nil {
		if *n < 1 || *n > ringfence.MaxLinkSeconds {
			return invalid("expires_in_seconds", "expires_in_seconds has to be from 1 to %d", ringfence.MaxLinkSeconds)
		}
		life = time.Duration(*n) * time.Second
	}
	if body.Port == nil {
		return invalid("port", "port is missing")
	}
	path, query, _ := strings.Cut(first(body.Path, "/"), "?")
	if !strings.HasPrefix(path, "/") || len(body.Path) > ringfence.MaxPathBytes || strings.ContainsFunc(body.Path, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '#' || r == '\\' }) {
		return invalid("path", "path has to begin with / and to be escaped as in a URL")
	}
	until := time.Now().Add(life).Truncate(time.Second).UTC()
	if life < 2*time.Second || until.Before(time.Now().Add(life)) {
		until = until.Add(time.Second) // whole seconds, and not less than was asked for
	}
	id := c.r.PathValue("id")
	signature, err := c.Engine.SignPort(c.r.Context(), c.who.Project, id, *body.Port, until)
	if err != nil {
		return err
	}
	if c.Domain != "" {
		path = linkPath + path
	}
	query = withoutLink(query)
	if query != "" {
		query += "&"
	}
	return c.reply(201, struct {
		URL       string  `json:"url"`
		ExpiresAt *string `json:"expires_at"`
	}{c.portURL(c.r, id, *body.Port, path+"?"+query+portLink{until, signature}.query()), wireTime(until)})
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
