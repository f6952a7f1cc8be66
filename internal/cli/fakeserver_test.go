package cli

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"ringfence.dev/ringfence"
)

// fakeServer answers as the API does, with a directory of the host as a sandbox.
type fakeServer struct {
	t     *testing.T
	mu    sync.Mutex
	boxes map[string]map[string]any
	dirs  map[string]string
}

func newFakeServer(t *testing.T) http.Handler {
	f := &fakeServer{t: t, boxes: map[string]map[string]any{}, dirs: map[string]string{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		reply(w, 200, map[string]any{"status": "ok", "version": "fake"})
	})
	mux.HandleFunc("POST /v1/sandboxes", f.create)
	mux.HandleFunc("GET /v1/sandboxes", f.list)
	mux.HandleFunc("DELETE /v1/sandboxes/{id}", f.with(func(w http.ResponseWriter, r *http.Request, id string) {
		f.boxes[id]["state"] = "deleted"
		f.boxes[id]["reason"] = "killed"
		w.WriteHeader(204)
	}))
	mux.HandleFunc("POST /v1/sandboxes/{id}/commands", f.with(f.command))
	mux.HandleFunc("PUT /v1/sandboxes/{id}/files", f.with(func(w http.ResponseWriter, r *http.Request, id string) {
		p := filepath.Join(f.dirs[id], r.URL.Query().Get("path"))
		_ = os.MkdirAll(filepath.Dir(p), 0o755)
		b, _ := io.ReadAll(r.Body)
		if err := os.WriteFile(p, b, 0o644); err != nil {
			refuse(w, ringfence.CodeIsDirectory, err.Error())
			return
		}
		reply(w, 200, map[string]any{"path": r.URL.Query().Get("path"), "size": len(b), "mode": "0644", "type": "file"})
	}))
	mux.HandleFunc("GET /v1/sandboxes/{id}/files", f.with(func(w http.ResponseWriter, r *http.Request, id string) {
		p := filepath.Join(f.dirs[id], r.URL.Query().Get("path"))
		if info, err := os.Stat(p); err == nil && info.IsDir() {
			refuse(w, ringfence.CodeIsDirectory, "it is a directory")
			return
		}
		b, err := os.ReadFile(p)
		if err != nil {
			refuse(w, ringfence.CodeFileNotFound, "no file "+r.URL.Query().Get("path"))
			return
		}
		_, _ = w.Write(b)
	}))
	mux.HandleFunc("GET /v1/templates", func(w http.ResponseWriter, r *http.Request) {
		reply(w, 200, map[string]any{"templates": []any{map[string]any{"name": "code-interpreter", "aliases": []string{"code-interpreter-v1"}, "image": strings.Repeat("a", 64)}}})
	})
	mux.HandleFunc("GET /v1/keys", func(w http.ResponseWriter, r *http.Request) {
		reply(w, 200, map[string]any{"keys": []any{map[string]any{"id": "k1", "name": "\x1b[31mred"}}})
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", "00000000deadbeef")
		if r.Header.Get("Authorization") != "Bearer rf_test" {
			refuse(w, ringfence.CodeUnauthenticated, "no such key")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, code ringfence.Code, message string) {
	reply(w, ringfence.RowOf(code).HTTP, map[string]any{"error": map[string]any{"code": code, "message": message, "hint": "do better", "request_id": "00000000deadbeef"}})
}

func (f *fakeServer) with(h func(http.ResponseWriter, *http.Request, string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("id")
		f.mu.Lock()
		_, ok := f.boxes[id]
		f.mu.Unlock()
		if !ok {
			refuse(w, ringfence.CodeNotFound, "no sandbox "+id)
			return
		}
		h(w, r, id)
	}
}

func (f *fakeServer) create(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Name, Template string
		Metadata       map[string]string
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	if body.Template == "" {
		body.Template = "code-interpreter"
	}
	if body.Template != "code-interpreter" {
		refuse(w, ringfence.CodeTemplateNotFound, "no template "+body.Template)
		return
	}
	id := ringfence.NewSandboxID()
	box := map[string]any{"id": id, "name": body.Name, "template": body.Template, "state": "running", "work_dir": "/home/user",
		"metadata": body.Metadata, "created_at": "2026-11-30T20:00:00.000000Z", "access_token": "feed"}
	f.mu.Lock()
	f.boxes[id], f.dirs[id] = box, f.t.TempDir()
	f.mu.Unlock()
	_ = os.MkdirAll(filepath.Join(f.dirs[id], "home/user"), 0o755)
	reply(w, 201, box)
}

func (f *fakeServer) list(w http.ResponseWriter, r *http.Request) {
	list := []any{}
	for _, b := range f.boxes {
		if states := r.URL.Query().Get("state"); states == "" && b["state"] == "running" || strings.Contains(states, b["state"].(string)) {
			list = append(list, b)
		}
	}
	reply(w, 200, map[string]any{"sandboxes": list, "next_cursor": nil})
}

func (f *fakeServer) command(w http.ResponseWriter, r *http.Request, id string) {
	var body struct {
		Command, Cwd, Stdin string
		Args                []string
		Env                 map[string]string
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	if body.Command != "" {
		body.Args = []string{"sh", "-c", body.Command}
	}
	cmd := exec.CommandContext(r.Context(), body.Args[0], body.Args[1:]...)
	cmd.Dir = filepath.Join(f.dirs[id], first(body.Cwd, "/home/user"))
	cmd.Stdin = strings.NewReader(body.Stdin)
	cmd.Env = os.Environ()
	for k, v := range body.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	stream := r.Header.Get("Accept") == "application/vnd.ringfence.stream"
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if stream {
		w.Header().Set("Content-Type", "application/vnd.ringfence.stream")
		w.WriteHeader(200)
		var mu sync.Mutex
		cmd.Stdout, cmd.Stderr = &framer{w: w, mu: &mu, kind: 1}, &framer{w: w, mu: &mu, kind: 2}
	}
	err := cmd.Run()
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		code = 127
	}
	result := map[string]any{"id": "c1", "exit_code": code, "stdout": stdout.String(), "stderr": stderr.String()}
	if !utf8.Valid(stdout.Bytes()) {
		result["stdout_base64"] = stdout.Bytes() // base64 is what JSON makes of bytes
	}
	if !stream {
		reply(w, 200, result)
		return
	}
	b, _ := json.Marshal(result)
	_, _ = (&framer{w: w, mu: &sync.Mutex{}, kind: 4}).Write(b)
}

type framer struct {
	w    http.ResponseWriter
	mu   *sync.Mutex
	kind byte
}

func (f *framer) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, _ = f.w.Write(append(binary.BigEndian.AppendUint32([]byte{f.kind}, uint32(len(p))), p...))
	return len(p), http.NewResponseController(f.w).Flush()
}
