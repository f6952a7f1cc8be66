package api_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"

	"ringfence.dev/ringfence"
)

func filePath(id, suffix, path string) string {
	return "/v1/sandboxes/" + id + "/files" + suffix + "?path=" + url.QueryEscape(path)
}

func TestFiles(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	for _, name := range []string{"plain", "späce and\nnewline", "-dash", strings.Repeat("x", 255), "emoji 🙂", "a&b=c+d%20"} {
		path := "/new/dir/" + name
		data := "data of " + name
		r := w.send("PUT", filePath(id, "", path)+"&mode=0600", data)
		if r.StatusCode != 200 {
			t.Fatalf("write %q: %d %s", name, r.StatusCode, r.body)
		}
		if info := r.json(t); info["path"] != path || info["name"] != name || info["size"] != float64(len(data)) || info["type"] != "file" || info["mode"] != "0600" || info["target"] != nil {
			t.Errorf("write %q: %v", name, info)
		}
		if r := w.send("GET", filePath(id, "", path), ""); string(r.body) != data || r.Header.Get("Content-Type") != "application/octet-stream" ||
			r.Header.Get("Content-Disposition")[:10] != "attachment" || r.Header.Get("X-Content-Type-Options") != "nosniff" || r.ContentLength != int64(len(data)) {
			t.Errorf("read %q: %q %v", name, r.body, r.Header)
		}
	}
	r := w.send("GET", filePath(id, "/list", "/new"), "")
	if entries := r.json(t)["entries"].([]any); len(entries) != 1 {
		t.Errorf("list: %s", r.body)
	}
	r = w.send("GET", filePath(id, "/list", "/new")+"&depth=2", "")
	if entries := r.json(t)["entries"].([]any); len(entries) != 7 {
		t.Errorf("list with depth: %s", r.body)
	}
	if r := w.send("POST", "/v1/sandboxes/"+id+"/files/mkdir", `{"path":"/a/b/c"}`); r.StatusCode != 200 || r.json(t)["type"] != "directory" {
		t.Errorf("mkdir: %d %s", r.StatusCode, r.body)
	}
	if r := w.send("POST", "/v1/sandboxes/"+id+"/files/rename", `{"from":"/new/dir/plain","to":"/a/moved"}`); r.StatusCode != 200 || r.json(t)["path"] != "/a/moved" {
		t.Errorf("rename: %d %s", r.StatusCode, r.body)
	}
	if r := w.send("GET", filePath(id, "/stat", "/a/moved"), ""); r.StatusCode != 200 || r.json(t)["name"] != "moved" {
		t.Errorf("stat: %d %s", r.StatusCode, r.body)
	}
	w.refused(w.send("DELETE", filePath(id, "", "/a"), ""), 409, ringfence.CodeDirectoryNotEmpty, "path")
	if r := w.send("DELETE", filePath(id, "", "/a")+"&recursive=true", ""); r.StatusCode != 204 || len(r.body) != 0 {
		t.Errorf("remove: %d %s", r.StatusCode, r.body)
	}
	w.refused(w.send("GET", filePath(id, "/stat", "/a"), ""), 404, ringfence.CodeFileNotFound, "path")
}

// A name that is not UTF-8 travels in base64.
func TestFileNameOfBytes(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	path := "/raw/\xff\xfe name"
	encoded := base64.StdEncoding.EncodeToString([]byte(path))
	at := "/v1/sandboxes/" + id + "/files?path_base64=" + url.QueryEscape(encoded)
	if r := w.send("PUT", at, "x"); r.StatusCode != 200 || r.json(t)["path_base64"] != encoded || r.json(t)["path"] != "/raw/\ufffd name" {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	if r := w.send("GET", at, ""); string(r.body) != "x" {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	other := base64.StdEncoding.EncodeToString([]byte("/raw/\xfd"))
	if r := w.send("POST", "/v1/sandboxes/"+id+"/files/rename", `{"from_base64":"`+encoded+`","to_base64":"`+other+`"}`); r.StatusCode != 200 || r.json(t)["path_base64"] != other {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	if r := w.send("POST", "/v1/sandboxes/"+id+"/files/mkdir", `{"path_base64":"`+encoded+`"}`); r.StatusCode != 200 || r.json(t)["type"] != "directory" {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	w.refused(w.send("POST", "/v1/sandboxes/"+id+"/files/mkdir", `{"path":"/a","path_base64":"`+encoded+`"}`), 400, ringfence.CodeInvalidArgument, "path_base64")
	w.refused(w.send("GET", "/v1/sandboxes/"+id+"/files?path=%2Fraw%2F%ff%fe", ""), 400, ringfence.CodeInvalidArgument, "path")
}

func TestFileErrors(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	w.send("PUT", filePath(id, "", "/dir/file"), "x")
	for _, tc := range []struct {
		method, at, body string
		status           int
		code             ringfence.Code
		field            string
	}{
		{"GET", filePath(id, "", "/dir"), "", 409, ringfence.CodeIsDirectory, "path"},
		{"GET", filePath(id, "", "/none"), "", 404, ringfence.CodeFileNotFound, "path"},
		{"HEAD", filePath(id, "", "/none"), "", 404, "", ""},
		{"GET", filePath(id, "", "relative"), "", 400, ringfence.CodeInvalidArgument, "path"},
		{"GET", "/v1/sandboxes/" + id + "/files", "", 400, ringfence.CodeInvalidArgument, "path"},
		{"GET", filePath(id, "", "/a\x00b"), "", 400, ringfence.CodeInvalidArgument, "path"},
		{"GET", filePath(id, "", "/"+strings.Repeat("x/", 2100)), "", 400, ringfence.CodeInvalidArgument, "path"},
		{"GET", filePath(id, "", "/dir/file/below"), "", 409, ringfence.CodeNotDirectory, "path"},
		{"PUT", filePath(id, "", "/dir"), "x", 409, ringfence.CodeIsDirectory, "path"},
		{"PUT", filePath(id, "", "/x") + "&mode=999", "x", 400, ringfence.CodeInvalidArgument, "mode"},
		{"PUT", filePath(id, "", "/x") + "&user=no-such-user", "x", 400, ringfence.CodeInvalidArgument, "user"},
		{"PUT", filePath(id, "", "/x") + "&owner=no%20such", "x", 400, ringfence.CodeInvalidArgument, "owner"},
		{"GET", filePath(id, "/list", "/dir/file"), "", 409, ringfence.CodeNotDirectory, "path"},
		{"GET", filePath(id, "/list", "/dir") + "&depth=65", "", 400, ringfence.CodeInvalidArgument, "depth"},
		{"POST", "/v1/sandboxes/" + id + "/files/rename", `{"from":"x","to":"/y"}`, 400, ringfence.CodeInvalidArgument, "from"},
		{"POST", "/v1/sandboxes/" + id + "/files/rename", `{"from":"/x","to":"y"}`, 400, ringfence.CodeInvalidArgument, "to"},
		{"POST", "/v1/sandboxes/" + id + "/files/mkdir", `{"path":"/dir/file"}`, 409, ringfence.CodeFileExists, "path"},
		{"DELETE", filePath(id, "", "/none"), "", 404, ringfence.CodeFileNotFound, "path"},
		{"DELETE", filePath(id, "", "/dir") + "&recursive=maybe", "", 400, ringfence.CodeInvalidArgument, "recursive"},
	} {
		r := w.send(tc.method, tc.at, tc.body)
		if tc.method == "HEAD" {
			if r.StatusCode != tc.status {
				t.Errorf("HEAD: %d", r.StatusCode)
			}
			continue
		}
		w.refused(r, tc.status, tc.code, tc.field)
	}
}

func TestRanges(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	at := filePath(id, "", "/f")
	w.send("PUT", at, "0123456789")
	whole := w.send("GET", at, "")
	tag, modified := whole.Header.Get("ETag"), whole.Header.Get("Last-Modified")
	for _, tc := range []struct {
		header, body, contentRange string
		status                     int
	}{
		{"bytes=0-0", "0", "bytes 0-0/10", 206},
		{"bytes=2-4", "234", "bytes 2-4/10", 206},
		{"bytes=7-", "789", "bytes 7-9/10", 206},
		{"bytes=7-100", "789", "bytes 7-9/10", 206},
		{"bytes=-3", "789", "bytes 7-9/10", 206},
		{"bytes=-100", "0123456789", "bytes 0-9/10", 206},
		{"bytes=0-9223372036854775807", "0123456789", "bytes 0-9/10", 206},
		{"bytes=4-2", "0123456789", "", 200}, {"bytes=0-1,3-4", "0123456789", "", 200}, {"lines=1-2", "0123456789", "", 200},
		{"bytes=a-b", "0123456789", "", 200}, {"bytes=--3", "0123456789", "", 200}, {"bytes=", "0123456789", "", 200},
	} {
		r := w.send("GET", at, "", "Range", tc.header)
		if r.StatusCode != tc.status || string(r.body) != tc.body || r.Header.Get("Content-Range") != tc.contentRange {
			t.Errorf("%s: %d %q %q", tc.header, r.StatusCode, r.body, r.Header.Get("Content-Range"))
		}
	}
	for _, header := range []string{"bytes=10-", "bytes=11-12", "bytes=-0"} {
		r := w.send("GET", at, "", "Range", header)
		w.refused(r, 416, ringfence.CodeRangeInvalid, "")
	}
	if r := w.send("HEAD", at, ""); r.StatusCode != 200 || r.ContentLength != 10 || r.Header.Get("ETag") != tag || len(r.body) != 0 {
		t.Errorf("HEAD: %d %v", r.StatusCode, r.Header)
	}
	if r := w.send("GET", at, "", "If-None-Match", tag); r.StatusCode != 304 || len(r.body) != 0 {
		t.Errorf("If-None-Match: %d", r.StatusCode)
	}
	if r := w.send("GET", at, "", "Range", "bytes=1-2", "If-Range", tag); r.StatusCode != 206 {
		t.Errorf("If-Range: %d", r.StatusCode)
	}
	if r := w.send("GET", at, "", "Range", "bytes=1-2", "If-Range", modified); r.StatusCode != 206 {
		t.Errorf("If-Range with a date: %d", r.StatusCode)
	}
	w.send("PUT", at, "ABCDEFGHIJ")
	if r := w.send("GET", at, "", "Range", "bytes=1-2", "If-Range", tag); r.StatusCode != 200 || string(r.body) != "ABCDEFGHIJ" {
		t.Errorf("If-Range of an old one: %d %q", r.StatusCode, r.body)
	}
	w.send("PUT", at, "")
	if r := w.send("GET", at, ""); r.StatusCode != 200 || r.ContentLength != 0 {
		t.Errorf("an empty file: %d %d", r.StatusCode, r.ContentLength)
	}
	w.refused(w.send("GET", at, "", "Range", "bytes=0-"), 416, ringfence.CodeRangeInvalid, "")
}

// bigReader is a body that no memory holds.
type bigReader struct {
	left int
	next byte
}

func (r *bigReader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), r.left)
	for i := range n {
		p[i] = r.next
		r.next = r.next*5 + 1
	}
	r.left -= n
	return n, nil
}

func TestLargeFile(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	const size = 16 << 20
	want := sha256.New()
	r := w.sendCtx(t.Context(), "PUT", filePath(id, "", "/big"), io.TeeReader(&bigReader{left: size}, want))
	if r.StatusCode != 200 || r.json(t)["size"] != float64(size) {
		t.Fatalf("write: %d %s", r.StatusCode, r.body)
	}
	resp, err := w.open(t.Context(), "GET", filePath(id, "", "/big"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got := sha256.New()
	if n, err := io.Copy(got, resp.Body); n != size || err != nil {
		t.Fatalf("read %d bytes, %v", n, err)
	}
	if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Error("other bytes came back")
	}
}

// A body that breaks off leaves the old file as it was.
func TestUploadThatBreaksOff(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	w.send("PUT", filePath(id, "", "/f"), "old")
	body := io.MultiReader(strings.NewReader(strings.Repeat("new", 1000)), errReader{})
	if resp, err := w.open(t.Context(), "PUT", filePath(id, "", "/f"), body); err == nil {
		resp.Body.Close()
	}
	if r := w.send("GET", filePath(id, "", "/f"), ""); string(r.body) != "old" {
		t.Errorf("the file holds %.20q", r.body)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, fmt.Errorf("broken") }
