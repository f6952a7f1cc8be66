package api

import (
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
)

// portPolicy is what a page of a guest may do that comes from the API's own origin:
// nothing that has to do with that origin.
const portPolicy = "sandbox allow-scripts allow-forms allow-popups allow-downloads"

// secretHeaders never reach a sandbox: they are what callers authenticate with.
var secretHeaders = []string{"Authorization", "Proxy-Authorization", "X-Api-Key", "X-Access-Token"}

// claimedHeaders are what only a proxy may say of a request.
var claimedHeaders = []string{"X-Real-Ip", "True-Client-Ip", "Cf-Connecting-Ip", "X-Client-Ip", "X-Original-Url", "X-Rewrite-Url", "X-Original-Host"}

// strippedAlways are headers of an answer that reach beyond its own origin, or that tell a
// proxy in front of this server to do something.
var strippedAlways = []string{
	"Clear-Site-Data", "Strict-Transport-Security", "Public-Key-Pins", "Public-Key-Pins-Report-Only", "Alt-Svc", "Expect-Ct",
	"X-Sendfile", "X-Lighttpd-Send-File", "X-Reproxy-Url", "X-Request-Id", "Trailer", "Set-Cookie2",
	"Service-Worker-Allowed", "Nel", "Report-To", // these two tell of every address that is opened, links among them
}

// strippedOnPath are headers of an answer that change what its origin may do, where that
// is the API's.
var strippedOnPath = []string{
	"Set-Cookie", "Refresh", "Www-Authenticate", "Proxy-Authenticate", "Reporting-Endpoints",
	"Accept-Ch", "Critical-Ch", "Origin-Agent-Cluster", "Speculation-Rules", "Set-Login", "Activate-Storage-Access", "X-Content-Type-Options",
	"Timing-Allow-Origin", "Sourcemap", "X-Sourcemap", "Use-As-Dictionary", "Shared-Storage-Write", "Sec-Session-Registration",
	"Secure-Session-Registration", "Sec-Session-Challenge", "Secure-Session-Challenge", "Attribution-Reporting-Register-Source",
	"Attribution-Reporting-Register-Trigger",
}

// cleanRequest takes from a request to a guest what authenticated its caller, and all that
// only this server may say.
func cleanRequest(in, out *http.Request, p portAddress) {
	h := out.Header
	for name := range h {
		// Many programs (CGI, WSGI) take an underscore for a dash.
		meant := http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
		if strings.HasPrefix(meant, "X-Forwarded-") || slices.Contains(secretHeaders, meant) || slices.Contains(claimedHeaders, meant) ||
			name != meant && (meant == "Cookie" || meant == "Forwarded") {
			delete(h, name)
		}
	}
	cleanCookies(h, p)
	own := origin(in)
	local := "http://" + localHost(p.port)
	if o := h.Get("Origin"); strings.EqualFold(o, own) {
		// The program sees its own name, and may tell its own pages from others' by it.
		h.Set("Origin", local)
	}
	cleanReferer(h, own, p)
	var offered []string
	for _, protocol := range protocols(in) {
		if !strings.HasPrefix(strings.ToLower(protocol), tokenProtocol) && protocol != "" {
			offered = append(offered, protocol)
		}
	}
	h.Del("Sec-Websocket-Protocol")
	if len(offered) > 0 {
		h.Set("Sec-WebSocket-Protocol", strings.Join(offered, ", "))
	}
	if !strings.EqualFold(h.Get("Upgrade"), "websocket") {
		h.Del("Upgrade")
		h.Del("Connection")
	}
}

// cleanReferer leaves one line, which never has a link in it: also where this server does
// not know the page for one of its own, because a proxy in front has another name.
func cleanReferer(h http.Header, own string, p portAddress) {
	referer, err := url.Parse(h.Get("Referer"))
	h.Del("Referer")
	if err != nil || referer.Host == "" {
		return
	}
	query := question(withoutLink(referer.RawQuery))
	if !strings.EqualFold(referer.Scheme+"://"+referer.Host, own) {
		h.Set("Referer", referer.Scheme+"://"+referer.Host+referer.EscapedPath()+query)
		return
	}
	// A page of the API's origin is none of the guest's business.
	if rest, inside := strings.CutPrefix(referer.EscapedPath(), p.prefix+"/"); p.own() || inside {
		h.Set("Referer", "http://"+localHost(p.port)+"/"+strings.TrimPrefix(rest, "/")+query)
	}
}

func question(query string) string {
	if query == "" {
		return ""
	}
	return "?" + query
}

// cleanCookies leaves a guest its own cookies. On the API's origin it has none.
func cleanCookies(h http.Header, p portAddress) {
	lines := h["Cookie"]
	delete(h, "Cookie")
	if !p.own() {
		return
	}
	var kept []string
	for _, line := range lines {
		for item := range strings.SplitSeq(line, ";") {
			item = strings.TrimSpace(item)
			if name, _, _ := strings.Cut(item, "="); item != "" && !strings.HasPrefix(strings.ToLower(strings.TrimSpace(name)), "rf_") {
				kept = append(kept, item)
			}
		}
	}
	if len(kept) > 0 {
		h.Set("Cookie", strings.Join(kept, "; "))
	}
}

// localHost is what the program in the sandbox is called by: its own loopback.
func localHost(port int) string { return "localhost:" + strconv.Itoa(port) }

// cleanAnswer takes from a guest's answer what would reach beyond it.
func cleanAnswer(in *http.Request, h http.Header, p portAddress) {
	for name := range h {
		if strings.HasPrefix(name, "X-Accel-") || !p.own() && strings.HasPrefix(name, "Access-Control-") {
			delete(h, name)
		}
	}
	for _, name := range strippedAlways {
		h.Del(name)
	}
	if p.own() {
		h["Set-Cookie"] = ownCookies(h["Set-Cookie"])
		if len(h["Set-Cookie"]) == 0 {
			delete(h, "Set-Cookie")
		}
	} else {
		for _, name := range strippedOnPath {
			h.Del(name)
		}
	}
	// Of several places browsers take none, and programs the first that is not empty.
	locations := slices.DeleteFunc(h["Location"], func(l string) bool { return strings.TrimSpace(l) == "" })
	h.Del("Location")
	if len(locations) > 0 {
		moved, elsewhere := moveLocation(in, locations[0], p)
		if elsewhere && credential(in) != "" {
			// Many clients follow with the headers that they sent here, the key among them.
			h.Set("X-Ringfence-Location", moved)
		} else {
			h.Set("Location", moved)
		}
	}
	h.Del("Content-Location")
}

// ownCookies keeps a guest's cookies to its own host, and away from our names.
func ownCookies(lines []string) []string {
	var kept []string
	for _, line := range lines {
		parts := strings.Split(line, ";")
		// "=a=b" is a cookie without a name, which browsers send as "a=b".
		if strings.HasPrefix(strings.ToLower(strings.TrimLeft(parts[0], " \t=")), "rf_") {
			continue
		}
		own := parts[:1]
		for _, attribute := range parts[1:] {
			key, _, _ := strings.Cut(attribute, "=")
			if !strings.EqualFold(strings.TrimSpace(key), "domain") {
				own = append(own, attribute)
			}
		}
		kept = append(kept, strings.Join(own, ";"))
	}
	return kept
}

// moveLocation turns where a guest sends its client into where the client finds that. What
// is the guest's stays below the prefix, however it is spelled: a client that follows
// with its API key must not end at another path of the API. elsewhere says that it is
// another origin.
func moveLocation(in *http.Request, location string, p portAddress) (moved string, elsewhere bool) {
	// Browsers read a backslash as a slash, leave out control characters, and take %2e for a dot.
	location = strings.Map(func(r rune) rune {
		switch {
		case r == '\\':
			return '/'
		case r < ' ' || r == 0x7f:
			return -1
		}
		return r
	}, strings.TrimSpace(location))
	end := strings.IndexAny(location, "?#")
	if end < 0 {
		end = len(location)
	}
	location = dots.Replace(location[:end]) + location[end:]
	base := &url.URL{Scheme: "http", Host: localHost(p.port), Path: "/"}
	if u, err := base.Parse(p.rest); err == nil {
		base = u
	}
	to, err := base.Parse(location)
	if err != nil || to.Opaque != "" || to.Scheme != "http" && to.Scheme != "https" {
		return p.prefix + "/", false
	}
	own, err := url.Parse(origin(in))
	mine := err == nil && strings.EqualFold(to.Host, own.Host)
	if to.Host != "" && !mine && !isLocal(to, p.port) {
		return to.String(), true
	}
	rest := to.EscapedPath()
	if mine && !p.own() { // it knows its prefix
		rest = strings.TrimPrefix(rest, p.prefix)
	}
	// Without dot segments and without an empty segment that would make a host of the next.
	clean := path.Clean("/" + rest)
	if strings.HasSuffix(rest, "/") && clean != "/" {
		clean += "/"
	}
	moved = p.prefix + clean + question(to.RawQuery)
	if to.Fragment != "" {
		moved += "#" + to.EscapedFragment()
	}
	return moved, false
}

var dots = strings.NewReplacer("%2e", ".", "%2E", ".", "%5c", "/", "%5C", "/")

// isLocal reports whether a guest means itself.
func isLocal(u *url.URL, port int) bool {
	digits := u.Port()
	if digits == "" {
		digits = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	switch u.Hostname() {
	case "localhost", "127.0.0.1", "::1", "0.0.0.0", "::":
		return digits == strconv.Itoa(port)
	}
	return false
}
