package api_test

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/engine"
)

// sign returns the path and query of a signed URL.
func (w *world) sign(id, body string) string {
	w.t.Helper()
	r := w.send("POST", "/v1/sandboxes/"+id+"/files/sign", body)
	signed, _ := r.json(w.t)["url"].(string)
	rest, ok := strings.CutPrefix(signed, w.url)
	if r.StatusCode != 200 || !ok {
		w.t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	return rest
}

// A signed URL opens one operation on one file, to anybody, and a browser keeps what it
// gets instead of showing it.
func TestSignedURLs(t *testing.T) {
	w := newWorld(t)
	id, other := w.createID(), w.createID()
	w.send("PUT", filePath(id, "", "/d/page.html"), "<script>alert(1)</script>")
	w.send("PUT", filePath(other, "", "/d/page.html"), "another sandbox's")
	read := w.sign(id, `{"path":"/d/page.html","operation":"read","expires_in_seconds":60}`)
	anon := func(method, at, body string, headers ...string) reply {
		return w.send(method, at, body, append([]string{"Authorization", "-", "Origin", "https://evil.example"}, headers...)...)
	}
	r := anon("GET", read, "")
	h := r.Header
	if r.StatusCode != 200 || string(r.body) != "<script>alert(1)</script>" || h.Get("Content-Disposition") != "attachment; filename=page.html" ||
		h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("%d %s %v", r.StatusCode, r.body, h)
	}
	for name := range h {
		if strings.HasPrefix(name, "Access-Control-") {
			t.Errorf("CORS is opened: %s", name)
		}
	}
	if r := anon("HEAD", read, ""); r.StatusCode != 200 || r.ContentLength != 25 || r.Header.Get("ETag") == "" {
		t.Errorf("HEAD: %d %v", r.StatusCode, r.Header)
	}
	if r := anon("GET", read, "", "Range", "bytes=1-6"); r.StatusCode != 206 || string(r.body) != "script" {
		t.Errorf("range: %d %q", r.StatusCode, r.body)
	}

	write := w.sign(id, `{"path":"/d/up","operation":"write","user":"user"}`)
	w.send("POST", "/v1/sandboxes/"+id+"/files/mode", `{"path":"/d","mode":"0777"}`)
	if r := anon("PUT", write, "one"); r.StatusCode != 200 || r.json(t)["owner"] != "user" {
		t.Errorf("PUT: %d %s", r.StatusCode, r.body)
	}
	form := "--b\r\nContent-Disposition: form-data; name=\"note\"\r\n\r\nx\r\n--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\ntwo\r\n--b--\r\n"
	if r := anon("POST", write, form, "Content-Type", "multipart/form-data; boundary=b"); r.StatusCode != 200 {
		t.Errorf("POST: %d %s", r.StatusCode, r.body)
	}
	if r := w.send("GET", filePath(id, "", "/d/up"), ""); string(r.body) != "two" {
		t.Errorf("it holds %q", r.body)
	}

	change := func(at, name, value string) string {
		u, _ := url.Parse(at)
		q := u.Query()
		q.Set(name, value)
		u.RawQuery = q.Encode()
		return u.String()
	}
	for what, c := range map[string]struct{ method, at string }{
		"another path":       {"GET", change(read, "path", "/etc/passwd")},
		"another user":       {"GET", change(read, "user", "user")},
		"a later end":        {"GET", change(read, "expires", "99999999999")},
		"an end in disguise": {"GET", strings.Replace(read, "expires=", "expires=%2B", 1)},
		"another operation":  {"PUT", read},
		"an operation given": {"PUT", change(read, "operation", "write")},
		"reading a write":    {"GET", write},
		"removing":           {"DELETE", write},
		"an owner added":     {"PUT", change(write, "owner", "root")},
		"a mode added":       {"PUT", change(write, "mode", "4755")},
		"a digit of it":      {"GET", read[:len(read)-1]},
		"no signature":       {"GET", change(read, "signature", "")},
		"another sandbox":    {"GET", strings.Replace(read, id, other, 1)},
		"another route":      {"GET", strings.Replace(read, "/files?", "/files/stat?", 1)},
	} {
		r := anon(c.method, c.at, "x")
		if r.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", what, r.StatusCode, r.body)
		}
	}
	// It opens what it opens only, also to who has a key.
	if r := w.send("GET", change(read, "path", "/etc/passwd"), ""); r.StatusCode != http.StatusUnauthorized {
		t.Errorf("with a key: %d %s", r.StatusCode, r.body)
	}
	past := time.Now().Add(-time.Second)
	signature, err := w.engine.SignFile(t.Context(), engine.FileRef{Project: ringfence.DefaultProject, Sandbox: id, Path: "/d/page.html"}, engine.OperationRead, past)
	if err != nil {
		t.Fatal(err)
	}
	late := url.Values{"path": {"/d/page.html"}, "operation": {"read"}, "signature": {signature}, "expires": {strconv.FormatInt(past.Unix(), 10)}}
	w.refused(anon("GET", "/v1/sandboxes/"+id+"/files?"+late.Encode(), ""), 401, ringfence.CodeSignatureExpired, "")
	w.send("DELETE", "/v1/sandboxes/"+id, "")
	if r := anon("GET", read, ""); r.StatusCode != http.StatusUnauthorized {
		t.Errorf("after its end: %d %s", r.StatusCode, r.body)
	}
	for body, field := range map[string]string{
		`{"path":"/x"}`: "operation", `{"path":"/x","operation":"remove"}`: "operation", `{"path":"x","operation":"read"}`: "path",
		`{"path":"/x","operation":"read","expires_in_seconds":0}`: "expires_in_seconds", `{"path":"/x","operation":"read","expires_in_seconds":604801}`: "expires_in_seconds",
	} {
		w.refused(w.send("POST", "/v1/sandboxes/"+other+"/files/sign", body), 400, ringfence.CodeInvalidArgument, field)
	}
}

// Conditions of reads and writes.
func TestFileConditions(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	at := filePath(id, "", "/f")
	if r := w.send("PUT", at, "one", "If-None-Match", "*"); r.StatusCode != 200 {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	w.refused(w.send("PUT", at, "two", "If-None-Match", "*"), 412, ringfence.CodePreconditionFailed, "path")
	etag := w.send("HEAD", at, "").Header.Get("ETag")
	r := w.send("PUT", at, "two", "If-Match", etag)
	if r.StatusCode != 200 || r.json(t)["etag"] == etag {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	w.refused(w.send("PUT", at, "three", "If-Match", etag), 412, ringfence.CodePreconditionFailed, "path")
	w.refused(w.send("GET", at, "", "If-Match", etag), 412, ringfence.CodePreconditionFailed, "path")
	etag = r.json(t)["etag"].(string)
	if r := w.send("GET", at, "", "If-Match", etag); r.StatusCode != 200 || string(r.body) != "two" {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	if r := w.send("GET", at, "", "If-None-Match", etag); r.StatusCode != 304 {
		t.Errorf("%d", r.StatusCode)
	}
	for header, field := range map[string]string{"W/" + etag: "If-Match", "x": "If-Match", `"`: "If-Match", `"a", "b"`: "If-Match"} {
		w.refused(w.send("PUT", at, "x", "If-Match", header), 400, ringfence.CodeInvalidArgument, field)
	}
	w.refused(w.send("PUT", at, "x", "If-None-Match", etag), 400, ringfence.CodeInvalidArgument, "If-None-Match")
}

// FuzzSignature: no signature but the right one opens anything.
func FuzzSignature(f *testing.F) {
	w := newWorld(f)
	id := w.createID()
	ref := engine.FileRef{Project: ringfence.DefaultProject, Sandbox: id, Path: "/f"}
	end := time.Now().Add(time.Hour).Truncate(time.Second)
	right, err := w.engine.SignFile(f.Context(), ref, engine.OperationRead, end)
	if err != nil {
		f.Fatal(err)
	}
	f.Add("read", "/f", "", end.Unix(), right)
	f.Add("write", "/f", "root", end.Unix(), right)
	f.Add("read", "/f", "", int64(0), "")
	f.Fuzz(func(t *testing.T, op, path, user string, expires int64, signature string) {
		got := engine.FileRef{Sandbox: id, Path: path, User: user}
		_, err := w.engine.VerifyFile(got, engine.FileOperation(op), expires, signature)
		same := op == "read" && path == "/f" && user == "" && expires == end.Unix() && strings.EqualFold(signature, right)
		if (err == nil) != same {
			t.Fatalf("%q %q %q %d %q: %v", op, path, user, expires, signature, err)
		}
	})
}
