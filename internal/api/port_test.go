package api_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
)

// serving is a sandbox in which a web server runs that tells what it was asked.
type serving struct {
	*world
	id, token string
}

func newServing(t *testing.T) *serving {
	t.Helper()
	w := newWorld(t)
	sb := w.create("{}")
	s := &serving{w, sb["id"].(string), sb["access_token"].(string)}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	resp, err := w.open(ctx, "POST", "/v1/sandboxes/"+s.id+"/commands", strings.NewReader(`{"command":"fake-serve 8000","timeout_seconds":0}`), "Accept", "text/event-stream")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	var seen []byte
	for buf := make([]byte, 4096); !bytes.Contains(seen, []byte("serving")); {
		n, err := resp.Body.Read(buf)
		if seen = append(seen, buf[:n]...); err != nil {
			t.Fatalf("%s %v", seen, err)
		}
	}
	return s
}

func (s *serving) path(rest string) string { return "/v1/sandboxes/" + s.id + "/ports/8000" + rest }
func (s *serving) host() string            { return "8000-" + s.id + ".box.example" }

// browser sends a request without the key, and follows nothing.
func (s *serving) browser(method, path string, headers ...string) reply {
	s.t.Helper()
	req, err := http.NewRequest(method, s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		} else {
			req.Header.Add(headers[i], headers[i+1])
		}
	}
	resp, err := (&http.Transport{DisableCompression: true}).RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return reply{resp, body}
}

// link makes a signed link and returns its path and query on the API's origin.
func (s *serving) link(body string) string {
	s.t.Helper()
	r := s.send("POST", "/v1/sandboxes/"+s.id+"/links", body)
	if r.StatusCode != 201 {
		s.t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	u, err := url.Parse(r.json(s.t)["url"].(string))
	if err != nil {
		s.t.Fatal(err)
	}
	if _, port, _ := strings.Cut(s.url, "127.0.0.1"); u.Host != s.host()+port {
		s.t.Errorf("the link is %s", u)
	}
	return s.path(u.RequestURI()) // one link opens both
}

func TestPortRequest(t *testing.T) {
	s := newServing(t)
	r := s.send("POST", s.path("/a%2Fb//c/../d;x?q=1&rf_expires=5&x=%zz&rf%5fsignature=5&%72f_expires=7"), "body",
		"X-API-Key", s.key, "X-Access-Token", s.token, "Proxy-Authorization", "Basic x", "Cookie", "session=1; rf_port_link=2",
		"X-Forwarded-For", "6.6.6.6", "X-Forwarded-User", "root", "X-Forwarded-Prefix", "/evil", "X-Real-Ip", "6.6.6.6", "Forwarded", "for=6.6.6.6",
		"Referer", s.url+s.path("/page?rf_expires=1&rf_signature=2&z=3"), "Origin", s.url, "X-Own", "stays",
		"Sec-WebSocket-Protocol", "a, ringfence.token."+s.token+", b", "Upgrade", "h2c", "Connection", "Upgrade, HTTP2-Settings", "HTTP2-Settings", "x")
	if r.StatusCode != 200 {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	got := r.json(t)
	if got["method"] != "POST" || got["path"] != "/a%2Fb//c/../d;x" || got["query"] != "q=1&x=%zz" || got["host"] != "localhost:8000" || got["body"] != 4.0 {
		t.Errorf("%s", r.body)
	}
	for _, secret := range []string{s.key, s.token, "rf_", "6.6.6.6", "evil", "Proxy-", "h2c", "session", "root"} {
		if bytes.Contains(r.body, []byte(secret)) {
			t.Errorf("%q reached the sandbox: %s", secret, r.body)
		}
	}
	header := got["header"].(map[string]any)
	for name, want := range map[string]string{
		"X-Own": "stays", "Referer": "http://localhost:8000/page?z=3", "Origin": "http://localhost:8000", "X-Forwarded-Prefix": strings.TrimSuffix(s.path("/"), "/"),
		"X-Forwarded-Proto": "http", "X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": strings.TrimPrefix(s.url, "http://"), "Sec-Websocket-Protocol": "a, b",
	} {
		if values, _ := header[name].([]any); len(values) != 1 || values[0] != want {
			t.Errorf("%s is %v, want %q", name, header[name], want)
		}
	}
	for _, name := range []string{"Authorization", "Cookie", "Connection", "Upgrade"} {
		if header[name] != nil {
			t.Errorf("%s is %v", name, header[name])
		}
	}
	// A foreign page is told apart, and a page of the API's origin is not named.
	r = s.send("GET", s.path("/"), "", "Origin", "https://evil.example", "Referer", s.url+"/console?secret")
	header = r.json(t)["header"].(map[string]any)
	if header["Origin"].([]any)[0] != "https://evil.example" || header["Referer"] != nil {
		t.Errorf("%v", header)
	}
	// On a host of its own a guest has its own cookies.
	r = s.send("GET", "/x/..//y?rf_signature=1", "", "Host", s.host(), "Cookie", "session=1; rf_port_link=2; RF_x=3; b=4", "X-API-Key", s.key)
	got = r.json(t)
	header = got["header"].(map[string]any)
	if got["path"] != "/x/..//y" || got["query"] != "" || header["Cookie"].([]any)[0] != "session=1; b=4" || header["X-Api-Key"] != nil || header["X-Forwarded-Prefix"] != nil {
		t.Errorf("%s", r.body)
	}
	for _, name := range []string{"Content-Security-Policy", "X-Content-Type-Options", "Cache-Control"} {
		if got := r.Header.Get(name); got != "" {
			t.Errorf("on a host of its own %s is %q", name, got)
		}
	}
}

func TestPortAccess(t *testing.T) {
	s := newServing(t)
	other := s.create("{}")
	refused := func(what string, status int, headers ...string) {
		t.Helper()
		for _, at := range [][2]string{{s.path("/"), strings.TrimPrefix(s.url, "http://")}, {"/", s.host()}} {
			if r := s.browser("GET", at[0], append([]string{"Host", at[1]}, headers...)...); r.StatusCode != status {
				t.Errorf("%s at %s: %d %s, want %d", what, at[1], r.StatusCode, r.body, status)
			}
		}
	}
	refused("nobody", 401)
	refused("a wrong key", 401, "Authorization", "Bearer "+ringfence.NewAPIKey())
	refused("another sandbox's token", 404, "X-Access-Token", other["access_token"].(string))
	refused("the key", 200, "Authorization", "Bearer "+s.key)
	refused("the token", 200, "X-Access-Token", s.token)
	if r := s.browser("GET", "/v1/sandboxes/"+ringfence.NewSandboxID()+"/ports/8000/"); r.StatusCode != 401 {
		t.Errorf("no sandbox: %d", r.StatusCode)
	}

	public := "/v1/sandboxes/" + s.id + "/ports/8000"
	s.refused(s.send("PUT", public, `{"public":true}`, "Authorization", "Bearer "+s.token), 403, ringfence.CodePermissionDenied, "")
	s.refused(s.send("PUT", public, `{}`), 400, ringfence.CodeInvalidArgument, "public")
	if r := s.send("PUT", public, `{"public":true}`); r.StatusCode != 200 || r.json(t)["public"] != true {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	refused("public", 200)
	refused("public, with what was meant for the guest", 200, "Authorization", "Basic x")
	if r := s.browser("GET", "/v1/sandboxes/"+s.id+"/ports/8001/"); r.StatusCode != 401 {
		t.Errorf("another port: %d", r.StatusCode)
	}
	if r := s.send("PUT", public, `{"public":false}`); r.StatusCode != 200 || r.json(t)["public"] != false {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	refused("public no more", 401)

	link := s.link(`{"port":8000,"path":"/a?b=1"}`)
	if !strings.HasPrefix(link, s.path("/.ringfence/a?")) {
		t.Errorf("the link is %s", link)
	}
	r := s.browser("GET", link)
	if got := r.json(t); r.StatusCode != 200 || got["path"] != "/a" || got["query"] != "b=1" {
		t.Errorf("the link: %d %s", r.StatusCode, r.body)
	}
	r = s.browser("GET", link, "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", "Sec-Fetch-Site", "cross-site")
	if r.StatusCode != 303 || r.Header.Get("Location") != s.url+s.path("/a?b=1") {
		t.Errorf("a browser: %d %v", r.StatusCode, r.Header)
	}
	cookie := r.Header.Get("Set-Cookie")
	for _, want := range []string{"Path=" + s.path("/"), "HttpOnly", "SameSite=Lax", "Expires="} {
		if !strings.Contains(cookie, want) || strings.Contains(cookie, "Domain") {
			t.Errorf("the cookie is %q", cookie)
		}
	}
	cookie, _, _ = strings.Cut(cookie, ";")
	refused("its cookie", 200, "Cookie", "rf_port_link=5.6; "+cookie)
	refused("its cookie, by its own page", 200, "Cookie", cookie, "Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "cors")
	refused("its cookie, by the sandbox next door", 403, "Cookie", cookie, "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors")
	refused("its cookie, by a page of another origin", 403, "Cookie", cookie, "Origin", "https://evil.example")
	refused("its cookie, by a page of no origin", 403, "Cookie", cookie, "Origin", "null")
	refused("its cookie, in another page's frame", 403, "Cookie", cookie, "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe")
	refused("its cookie, followed from elsewhere", 200, "Cookie", cookie, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document")
	for _, wrong := range []string{
		strings.Replace(link, "/ports/8000/", "/ports/8001/", 1), strings.Replace(link, s.id, other["id"].(string), 1),
		strings.Replace(link, "rf_expires=", "rf_expires=1", 1), link[:len(link)-1], link + "&rf_expires=1", strings.Replace(link, "rf_signature", "rf_signatur", 1),
	} {
		if r := s.browser("GET", wrong); r.StatusCode != 401 {
			t.Errorf("%s: %d", wrong, r.StatusCode)
		}
	}
	short := s.link(`{"port":8000,"expires_in_seconds":1}`)
	if r := s.browser("GET", short); r.StatusCode != 200 {
		t.Errorf("a short one: %d %s", r.StatusCode, r.body)
	}
	expired := false
	for end := time.Now().Add(time.Minute); !expired && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		r := s.browser("GET", short)
		expired = r.StatusCode == 401
		if expired && r.json(t)["error"].(map[string]any)["code"] != string(ringfence.CodeSignatureExpired) {
			t.Errorf("%s", r.body)
		}
	}
	if !expired {
		t.Error("the link does not expire")
	}
	for body, field := range map[string]string{
		`{}`: "port", `{"port":0}`: "port", `{"port":70000}`: "port", `{"port":1,"path":"x"}`: "path", `{"port":1,"path":"//x y"}`: "path",
		`{"port":1,"expires_in_seconds":0}`: "expires_in_seconds", `{"port":1,"expires_in_seconds":9999999}`: "expires_in_seconds",
	} {
		s.refused(s.send("POST", "/v1/sandboxes/"+s.id+"/links", body), 400, ringfence.CodeInvalidArgument, field)
	}
	// What looks like a host cannot become one.
	if r := s.browser("GET", "//evil.example/"+strings.TrimPrefix(s.link(`{"port":8000}`), s.path("/")), "Host", s.host(), "Accept", "text/html"); r.StatusCode != 303 || !strings.HasPrefix(r.Header.Get("Location"), "http://"+s.host()+"//evil.example/") {
		t.Errorf("%d %v", r.StatusCode, r.Header)
	}
	if r := s.send("DELETE", "/v1/sandboxes/"+s.id, ""); r.StatusCode != 204 {
		t.Fatal(r.StatusCode)
	}
	refused("the link of a sandbox that ended", 401, "Cookie", cookie)
	refused("one that ended", 410, "Authorization", "Bearer "+s.key)
}

func TestPortNames(t *testing.T) {
	s := newServing(t)
	for name, status := range map[string]int{
		s.host(): 200, strings.ToUpper(s.host()): 200, s.host() + ":9999": 200, s.host() + ".": 200,
		"box.example": 421, "x.box.example": 421, "8000." + s.id + ".box.example": 421, "08000-" + s.id + ".box.example": 421, "0-" + s.id + ".box.example": 421,
		"65536-" + s.id + ".box.example": 421, "8000-" + s.id[1:] + ".box.example": 421, "a." + s.host(): 421, "8000-" + s.id + "-x.box.example": 421,
		"8000-" + s.id + ".evil.example": 421, "8000-" + s.id + "box.example": 421, "+8000-" + s.id + ".box.example": 421,
	} {
		if r := s.browser("GET", "/", "Host", name, "Authorization", "Bearer "+s.key); r.StatusCode != status {
			t.Errorf("%s: %d %s, want %d", name, r.StatusCode, r.body, status)
		}
	}
	// Nothing of the API is there.
	if r := s.browser("GET", "/v1/sandboxes", "Host", s.host(), "Authorization", "Bearer "+s.key); r.json(t)["path"] != "/v1/sandboxes" {
		t.Errorf("%s", r.body)
	}
	at := "/v1/sandboxes/" + s.id + "/ports/"
	for path, status := range map[string]int{
		at + "8000/": 200, at + "8000": 200, at + "08000/": 404, at + "x/": 404, at + "0/": 404, at + "65536/": 404, at + "8000x": 400, at + "8001/": 502,
		"/v1/sandboxes/x/../" + s.id + "/ports/8000/": 404, "/v1//sandboxes/" + s.id + "/ports/8000/": 404, "/v1/sandboxes/" + s.id + "/ports%2f8000/": 404,
	} {
		if r := s.send("GET", path, ""); r.StatusCode != status {
			t.Errorf("%s: %d %s, want %d", path, r.StatusCode, r.body, status)
		}
	}
	e := s.refused(s.send("GET", at+"8001/", ""), 502, ringfence.CodePortNotListening, "port")
	if !strings.Contains(e["message"].(string), "nothing listens on port 8001") {
		t.Error(e)
	}
	if r := s.send("GET", at+"8001/", ""); r.Header.Get("Content-Security-Policy") == "" || r.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%v", r.Header)
	}
	s.refused(s.send("GET", at+"8000/sw.js", "", "Service-Worker", "script"), 403, ringfence.CodePermissionDenied, "")
	for path, status := range map[string]int{
		"/sw.js": 403, "//sw.js": 403, "/.ringfence/sw.js": 403, "/.ringfence/a/sw.js": 403, "/a/sw.js": 200, "/.ringfence-not/sw.js": 200,
	} {
		if r := s.send("GET", path, "", "Host", s.host(), "Service-Worker", "script"); r.StatusCode != status {
			t.Errorf("the service worker %s on the port's own host: %d %s, want %d", path, r.StatusCode, r.body, status)
		}
	}
}

// raw asks the guest to answer with these bytes.
func (s *serving) raw(answer string, own bool, headers ...string) reply {
	s.t.Helper()
	query := "?raw=" + url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(answer)))
	if own {
		return s.browser("GET", "/d/f"+query, append([]string{"Host", s.host(), "Authorization", "Bearer " + s.key}, headers...)...)
	}
	return s.browser("GET", s.path("/d/f"+query), append([]string{"Authorization", "Bearer " + s.key}, headers...)...)
}

const hostileAnswer = "Set-Cookie: a=1; Domain=box.example; Path=/\r\nSet-Cookie: rf_port_link=1.2\r\nSet-Cookie: b=2;HttpOnly\r\nClear-Site-Data: \"*\"\r\n" +
	"Access-Control-Allow-Origin: *\r\nAccess-Control-Allow-Credentials: true\r\nStrict-Transport-Security: max-age=1\r\nService-Worker-Allowed: /\r\n" +
	"Refresh: 0; url=/v1\r\nAlt-Svc: h3=\":443\"\r\nNEL: {}\r\nReport-To: {}\r\nX-Accel-Redirect: /etc/passwd\r\nX-Sendfile: /etc/passwd\r\nWWW-Authenticate: Basic\r\n" +
	"Content-Security-Policy: default-src *; sandbox allow-same-origin allow-scripts\r\nX-Content-Type-Options: sniff\r\nX-Request-Id: forged\r\nX-Own: stays\r\n" +
	"Content-Length: 2\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\nok"

func TestPortAnswer(t *testing.T) {
	s := newServing(t)
	for _, status := range []string{"200 OK", "304 Not Modified", "404 Not Found", "500 Oh", "302 Found"} {
		answer := "HTTP/1.1 " + status + "\r\n" + hostileAnswer
		if strings.HasPrefix(status, "304") {
			answer = strings.Replace(strings.TrimSuffix(answer, "ok"), "Content-Length: 2\r\n", "", 1)
		}
		r := s.raw("HTTP/1.1 103 Early Hints\r\nSet-Cookie: early=1\r\nLink: </v1>; rel=preload\r\n\r\n"+answer, false)
		policies := r.Header.Values("Content-Security-Policy")
		if len(policies) != 2 || policies[0] != "sandbox allow-scripts allow-forms allow-popups allow-downloads" {
			t.Errorf("%s: the policies are %q", status, policies)
		}
		if !strings.HasPrefix(status, r.Status[:3]) || r.Header.Get("X-Own") != "stays" || r.Header.Get("X-Content-Type-Options") != "nosniff" || r.Header.Get("X-Request-Id") == "forged" {
			t.Errorf("%s: %s %v", status, r.Status, r.Header)
		}
		for _, name := range []string{"Set-Cookie", "Clear-Site-Data", "Access-Control-Allow-Origin", "Access-Control-Allow-Credentials", "Strict-Transport-Security",
			"Service-Worker-Allowed", "Refresh", "Alt-Svc", "Nel", "Report-To", "X-Accel-Redirect", "X-Sendfile", "Www-Authenticate", "X-Hop", "Link"} {
			if got := r.Header.Values(name); len(got) > 0 {
				t.Errorf("%s: %s is %q", status, name, got)
			}
		}
	}
	r := s.raw("HTTP/1.1 200 OK\r\n"+hostileAnswer, true)
	if got := r.Header.Values("Set-Cookie"); len(got) != 2 || got[0] != "a=1; Path=/" || got[1] != "b=2;HttpOnly" {
		t.Errorf("its own cookies are %q", got)
	}
	if r.Header.Get("Clear-Site-Data") != "" || r.Header.Get("Service-Worker-Allowed") != "" || r.Header.Get("Nel") != "" || r.Header.Get("Report-To") != "" || r.Header.Get("X-Accel-Redirect") != "" || r.Header.Get("Strict-Transport-Security") != "" ||
		r.Header.Get("Access-Control-Allow-Origin") != "*" || len(r.Header.Values("Content-Security-Policy")) != 1 {
		t.Errorf("%v", r.Header)
	}
	r = s.raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Set-Cookie\r\n\r\n2\r\nok\r\n0\r\nSet-Cookie: a=1\r\nX-Late: 1\r\n\r\n", false)
	if string(r.body) != "ok" || len(r.Trailer) > 0 {
		t.Errorf("%q, trailer %v", r.body, r.Trailer)
	}
	for name, answer := range map[string]string{
		"no HTTP": "SSH-2.0-x\r\n", "nothing": "\r\n",
		"two lengths": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", "an upgrade": "HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
	} {
		r := s.raw(answer, false)
		if r.StatusCode != 502 || r.json(t)["error"].(map[string]any)["code"] != string(ringfence.CodePortFailed) {
			t.Errorf("%s: %d %s", name, r.StatusCode, r.body)
		}
	}
}

// A guest sends its clients to places of its own, however it spells them.
func TestPortLocation(t *testing.T) {
	s := newServing(t)
	api, prefix := strings.TrimPrefix(s.url, "http://"), strings.TrimSuffix(s.path("/"), "/")
	for location, want := range map[string]string{
		"/login": prefix + "/login", "x": prefix + "/d/x", "../x?y=%2e#z": prefix + "/x?y=%2e#z", "?q": prefix + "/d/f?q", "": "",
		"/": prefix + "/", "/a/": prefix + "/a/", "../../../../v1/keys": prefix + "/v1/keys", "/../../../v1/keys": prefix + "/v1/keys",
		"/%2e%2e/%2E%2e/v1/keys": prefix + "/v1/keys", `/\..\..\v1/keys`: "http://../v1/keys", "http:/v1/keys": prefix + "/v1/keys", "http:///" + api + "/v1/keys": prefix + "/" + api + "/v1/keys", "////" + api + "/v1": prefix + "/" + api + "/v1", "/..%5c../v1/keys": prefix + "/v1/keys", "/.\t./.\t./v1": prefix + "/v1",
		"http://" + api + "/v1/keys": prefix + "/v1/keys", "//" + api + "/v1/keys": prefix + "/v1/keys", `\\` + api + `\v1\keys`: prefix + "/v1/keys",
		"http://" + api + prefix + "/x": prefix + "/x", "http://" + api + prefix + "/../../../../keys": prefix + "/v1/keys", "http:///x": prefix + "/x",
		"http://localhost:8000/x": prefix + "/x", "http://127.0.0.1:8000": prefix + "/", "https://elsewhere.example/x": "https://elsewhere.example/x",
		"javascript:alert(1)": prefix + "/", "data:text/html,x": prefix + "/", "http://[::1": prefix + "/", "/x//y": prefix + "/x/y", "http:v1/keys": prefix + "/",
	} {
		r := s.raw("HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: "+location+"\r\n\r\n", false)
		got := r.Header.Get("Location")
		if strings.HasPrefix(want, "http") { // no client is to follow with its key
			if got != "" {
				t.Errorf("%q became %q", location, got)
			}
			got = r.Header.Get("X-Ringfence-Location")
		}
		if r.StatusCode != 302 || got != want {
			t.Errorf("%q became %d %q, want %q", location, r.StatusCode, got, want)
		}
	}
	link := s.link(`{"port":8000,"path":"/?raw=` + url.QueryEscape(base64.StdEncoding.EncodeToString([]byte("HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: https://elsewhere.example\r\n\r\n"))) + `"}`)
	if got := s.browser("GET", link).Header.Get("Location"); got != "https://elsewhere.example" {
		t.Errorf("without a key it became %q", got)
	}
	r := s.raw("HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: http://"+s.host()+"/x\r\n\r\n", true)
	if got := r.Header.Get("Location"); got != "/x" {
		t.Errorf("on its own host: %q", got)
	}
}

// Who has no credential wakes a paused sandbox only where its owner wants that, and not often.
func TestPublicPortWakes(t *testing.T) {
	s := newServing(t)
	sandbox := "/v1/sandboxes/" + s.id
	pause := func() {
		t.Helper()
		if r := s.send("POST", sandbox+"/pause", ""); r.StatusCode != 200 {
			t.Fatalf("%d %s", r.StatusCode, r.body)
		}
	}
	state := func(want string) {
		t.Helper()
		if got := s.send("GET", sandbox, "").json(t)["state"]; got != want {
			t.Errorf("it is %v, want %s", got, want)
		}
	}
	s.refused(s.send("PUT", sandbox+"/ports/8000", `{"public":false,"wakes":true}`), 400, ringfence.CodeInvalidArgument, "wakes")
	if r := s.send("PUT", sandbox+"/ports/8000", `{"public":true}`); r.StatusCode != 200 || r.json(t)["wakes"] != false {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	if r := s.browser("GET", s.path("/")); r.StatusCode != 200 {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	pause()
	s.refused(s.browser("GET", s.path("/")), 409, ringfence.CodeSandboxPaused, "")
	state("paused")
	s.send("GET", s.path("/"), "") // with the key
	state("running")
	if r := s.send("PUT", sandbox+"/ports/8000", `{"public":true,"wakes":true}`); r.StatusCode != 200 || r.json(t)["wakes"] != true {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	for woken := 0; ; woken++ {
		pause()
		r := s.browser("GET", s.path("/"))
		if r.StatusCode == 429 && woken >= 3 {
			s.refused(r, 429, ringfence.CodeResourceExhausted, "")
			if r.Header.Get("Retry-After") == "" {
				t.Error("a 429 without Retry-After")
			}
			state("paused")
			break
		}
		if r.StatusCode != 502 || woken > 20 { // nothing listens any more: the fake driver keeps no processes
			t.Fatalf("%d %s", r.StatusCode, r.body)
		}
		state("running")
	}
	s.send("GET", s.path("/"), "")
	state("running")
	pause()
	if r := s.send("PUT", sandbox+"/ports/8000", `{"public":true}`); r.StatusCode != 200 { // a call of its owner wakes it
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	pause()
	s.refused(s.browser("GET", s.path("/")), 409, ringfence.CodeSandboxPaused, "")
}

// A key of another project gets what it gets for a sandbox that does not exist, also when a
// connection of the owner's to the port is kept.
func TestForeignPort(t *testing.T) {
	s := newServing(t)
	if err := s.store.EnsureProject(t.Context(), ringfence.Project{ID: "other", Name: "other", CreatedAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	_, foreign, err := s.engine.CreateKey(t.Context(), "other", "")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.refused(s.send("GET", s.path("/theirs"), "", "Authorization", "Bearer "+foreign), 404, ringfence.CodeNotFound, "")
		if got := s.send("GET", s.path("/ours"), ""); got.StatusCode != 200 {
			t.Fatalf("%d %s", got.StatusCode, got.body)
		}
	}
}

// A policy that closes the ports closes them to those who have a key as well, also on what
// was published, until another policy opens them.
func TestClosedPorts(t *testing.T) {
	s := newServing(t)
	at := "/v1/sandboxes/" + s.id
	set := func(policy string, want any) {
		t.Helper()
		if got := s.send("PUT", at+"/network", policy); got.StatusCode != 200 || got.json(t)["closed_ports"] != want {
			t.Fatalf("%d %s", got.StatusCode, got.body)
		}
	}
	if got := s.send("PUT", at+"/ports/8000", `{"public":true}`); got.StatusCode != 200 {
		t.Fatal(got.body)
	}
	// The connections of these are kept for the next request.
	for _, got := range []reply{s.send("GET", s.path("/warm"), ""), s.browser("GET", s.path("/warmer"))} {
		if got.StatusCode != 200 {
			t.Fatalf("%d %s", got.StatusCode, got.body)
		}
	}
	set(`{"closed_ports":true}`, true)
	for _, got := range []reply{s.send("GET", s.path("/new"), ""), s.browser("GET", s.path("/newer"))} {
		if got.StatusCode != http.StatusForbidden || !strings.Contains(string(got.body), "permission_denied") {
			t.Errorf("%d %s", got.StatusCode, got.body)
		}
	}
	set(`{}`, nil)
	if got := s.send("GET", s.path("/again"), ""); got.StatusCode != 200 {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
}
