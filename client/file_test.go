package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"ringfence.dev/ringfence"
)

const fileJSON = `{"path":"/a b","name":"a b","type":"file","size":3,"mode":"4755","uid":1000,"gid":1000,"owner":"user","group":"user",
	"modified_at":"2026-11-30T20:00:00.000000Z","target":null}`

func TestWrite(t *testing.T) {
	var got struct {
		query, body string
		length      int64
	}
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got.query, got.body, got.length = r.URL.RawQuery, string(body), r.ContentLength
		answer(w, 200, fileJSON)
	})
	local := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(local, []byte("xxfrom a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(local)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Seek(2, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("x", expectBytes)
	files := c.Open(testID).Files()
	for name, tc := range map[string]struct {
		r      io.Reader
		body   string
		length int64
	}{
		"bytes":   {bytes.NewReader([]byte("abc")), "abc", 3},
		"empty":   {strings.NewReader(""), "", 0},
		"file":    {file, "from a file", 11},
		"limited": {io.LimitReader(strings.NewReader("abcdef"), 4), "abcd", 4},
		"section": {io.NewSectionReader(strings.NewReader("abcdef"), 1, 3), "bcd", 3},
		"unknown": {iotest.OneByteReader(strings.NewReader("abc")), "abc", -1},
		"large":   {strings.NewReader(large), large, expectBytes},
	} {
		info, err := files.Write(context.Background(), "/a b", tc.r, WriteOptions{Owner: "user", Mode: 0o755})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got.query != "mode=0755&owner=user&path=%2Fa+b" || got.body != tc.body || got.length != tc.length {
			t.Errorf("%s: got %q, %d bytes, length %d", name, got.query, len(got.body), got.length)
		}
		if info.Mode != 0o4755 || info.UID != 1000 || info.Type != TypeFile || info.ModifiedAt.IsZero() || info.IsDir() {
			t.Errorf("%s: got %+v", name, info)
		}
	}
	if _, err := files.As("user").Write(context.Background(), "/\xff\n", strings.NewReader(""), WriteOptions{}); err != nil || got.query != "path_base64=L%2F8K&user=user" {
		t.Errorf("got %q, %v", got.query, err)
	}
	broken := errors.New("broken reader")
	_, err = files.Write(context.Background(), "/a", io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(broken)), WriteOptions{})
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

func TestWriteRefusedEarly(t *testing.T) {
	// The refusal must be seen although the body was never read.
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		answer(w, 413, `{"error":{"code":"too_large","message":"m","hint":"h","request_id":"r"}}`)
	})
	for range 20 {
		_, err := c.Open(testID).Files().Write(context.Background(), "/a", io.LimitReader(zeros{}, 64<<20), WriteOptions{})
		if asError(t, err).Code != ringfence.CodeTooLarge {
			t.Fatalf("got %v", err)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestWriteMany(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("path") == "/bad" {
			answer(w, 409, `{"error":{"code":"is_directory","message":"m","hint":"h","request_id":"r"}}`)
			return
		}
		answer(w, 200, fileJSON)
	})
	written, err := c.Open(testID).Files().WriteMany(context.Background(), []FileData{
		{Path: "/1", Data: strings.NewReader("1")}, {Path: "/bad", Data: strings.NewReader("2")}, {Path: "/3", Data: strings.NewReader("3")},
	})
	if len(written) != 1 || ringfence.CodeOf(err) != ringfence.CodeIsDirectory {
		t.Errorf("got %v, %v", written, err)
	}
}

func TestRead(t *testing.T) {
	const text = "0123456789"
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("path") == "/short" {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, text)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
	})
	files := c.Open(testID).Files()
	if b, err := files.ReadFile(context.Background(), "/f"); err != nil || string(b) != text {
		t.Errorf("got %q, %v", b, err)
	}
	for _, tc := range []struct {
		offset, length int64
		want           string
	}{{2, 3, "234"}, {8, 99, "89"}, {4, -1, "456789"}, {3, 0, ""}, {0, -1, text}} {
		r, err := files.ReadRange(context.Background(), "/f", tc.offset, tc.length)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		r.Close()
		if err != nil || string(b) != tc.want {
			t.Errorf("range %d+%d: %q, %v", tc.offset, tc.length, b, err)
		}
	}
	if _, err := files.ReadRange(context.Background(), "/f", -1, 3); ringfence.CodeOf(err) != ringfence.CodeRangeInvalid {
		t.Errorf("got %v", err)
	}
	if _, err := files.ReadRange(context.Background(), "/f", 10, 3); ringfence.CodeOf(err) != ringfence.CodeRangeInvalid {
		t.Errorf("beyond the end: %v", err)
	}
	// A body that ends early is an error in both ways of reading it.
	if _, err := files.ReadFile(context.Background(), "/short"); asError(t, err).Code != ringfence.CodeUnavailable {
		t.Errorf("got %v", err)
	}
	r, err := files.Read(context.Background(), "/short")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.ReadAll(r); asError(t, err).Code != ringfence.CodeUnavailable {
		t.Errorf("got %v", err)
	}
}

func TestFileCalls(t *testing.T) {
	var got string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = strings.TrimSpace(r.Method + " " + strings.TrimPrefix(r.URL.RequestURI(), "/v1/sandboxes/"+testID) + " " + string(body))
		switch {
		case r.Method == "DELETE":
			w.WriteHeader(204)
		case strings.HasSuffix(r.URL.Path, "/list"):
			answer(w, 200, `{"entries":[`+fileJSON+`,{"path":"/x/\ufffd","path_base64":"L3gv/w==","name":"\ufffd","type":"symlink","mode":"0777","modified_at":"2026-11-30T20:00:00.000000Z","target":"/t"}]}`)
		case r.URL.Query().Get("path") == "/none":
			answer(w, 404, `{"error":{"code":"file_not_found","message":"m","hint":"h","request_id":"r"}}`)
		default:
			answer(w, 200, fileJSON)
		}
	})
	ctx := context.Background()
	files := c.Open(testID).Files()
	check := func(want string, err error) {
		t.Helper()
		if err != nil || got != want {
			t.Errorf("sent %s\nwant %s (%v)", got, want, err)
		}
	}
	_, err := files.Stat(ctx, "/a")
	check("GET /files/stat?path=%2Fa", err)
	_, err = files.Mkdir(ctx, "/a", MkdirOptions{Owner: "user", Mode: 0o700})
	check(`POST /files/mkdir {"mode":"0700","owner":"user","path":"/a"}`, err)
	_, err = files.As("user").Rename(ctx, "/a", "/b")
	check(`POST /files/rename {"from":"/a","to":"/b","user":"user"}`, err)
	check("DELETE /files?path=%2Fa", files.Remove(ctx, "/a"))
	check("DELETE /files?path=%2Fa&recursive=true", files.RemoveAll(ctx, "/a"))
	entries, err := files.List(ctx, "/x", 3)
	check("GET /files/list?depth=3&path=%2Fx", err)
	if len(entries) != 2 || entries[1].Path != "/x/\xff" || entries[1].Name != "\xff" || entries[1].Target != "/t" {
		t.Errorf("got %+v", entries)
	}
	if ok, err := files.Exists(ctx, "/a"); !ok || err != nil {
		t.Errorf("got %v, %v", ok, err)
	}
	if ok, err := files.Exists(ctx, "/none"); ok || err != nil {
		t.Errorf("got %v, %v", ok, err)
	}
}
