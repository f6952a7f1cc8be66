package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
	"ringfence.dev/ringfence/internal/api/apitest"
	"ringfence.dev/ringfence/internal/driver/fake"
)

// connect returns a client of a real server whose sandboxes live in memory.
func connect(t *testing.T) *client.Client {
	t.Helper()
	server := apitest.Start(t, fake.Options{})
	c, err := client.New(client.Options{BaseURL: server.URL, APIKey: server.Key})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func create(t *testing.T, c *client.Client, o client.CreateOptions) *client.Sandbox {
	t.Helper()
	s, err := c.Create(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func wantCode(t *testing.T, what string, err error, code ringfence.Code) {
	t.Helper()
	var e *ringfence.Error
	if !errors.As(err, &e) || e.Code != code || e.Message == "" || e.RequestID == "" {
		t.Errorf("%s: got %#v (%v), want %s with a message and a request id", what, e, err, code)
	}
}

func TestServerSandboxes(t *testing.T) {
	c, ctx := connect(t), t.Context()
	s := create(t, c, client.CreateOptions{Name: "n", Template: "code-interpreter-v1", VCPU: 1, MemoryMiB: 256, DiskMiB: 64, Timeout: time.Hour,
		Env: map[string]string{"A": "b"}, Metadata: map[string]string{"k": "v w"}, User: "user",
		Network: &ringfence.NetworkPolicy{DenyOut: []string{"0.0.0.0/0"}}})
	i := s.Info()
	if !ringfence.ValidSandboxID(s.ID()) || i.Name != "n" || i.Template != "code-interpreter" || i.State != ringfence.StateRunning || i.VCPU != 1 ||
		i.MemoryMiB != 256 || i.DiskMiB != 64 || i.Metadata["k"] != "v w" || i.User != "user" || i.WorkDir != "/home/user" ||
		!slices.Equal(i.Network.DenyOut, []string{"0.0.0.0/0"}) || i.ExpiresAt.Sub(i.CreatedAt) != time.Hour || !i.EndedAt.IsZero() || len(s.AccessToken()) != 64 {
		t.Errorf("got %+v", i)
	}
	got, err := c.Get(ctx, s.ID())
	if err != nil || got.Info().CreatedAt != i.CreatedAt || got.AccessToken() != "" {
		t.Errorf("got %+v, %v", got, err)
	}
	for range 4 {
		create(t, c, client.CreateOptions{Metadata: map[string]string{"many": "yes"}})
	}
	ids := map[string]bool{}
	for s, err := range c.List(ctx, client.ListOptions{PageSize: 2}) {
		if err != nil {
			t.Fatal(err)
		}
		ids[s.ID()] = true
	}
	if len(ids) != 5 {
		t.Errorf("pages of 2 gave %d of 5", len(ids))
	}
	n := 0
	for range c.List(ctx, client.ListOptions{Metadata: map[string]string{"k": "v w"}, States: []ringfence.State{ringfence.StateRunning}}) {
		n++
	}
	if n != 1 {
		t.Errorf("by metadata: %d", n)
	}

	token, err := client.New(client.Options{BaseURL: c.URL(), APIKey: string(s.AccessToken())})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := token.Open(s.ID()).Run(ctx, client.Command{Shell: "echo $A"}); err != nil || string(r.Stdout) != "b\n" {
		t.Errorf("with the access token: %+v, %v", r, err)
	}
	again, err := s.GetAccessToken(ctx)
	if err != nil || len(again) != 64 || again == s.AccessToken() {
		t.Errorf("another token: %v", err)
	}
	second, err := client.New(client.Options{BaseURL: c.URL(), APIKey: string(again)})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := second.Open(s.ID()).Run(ctx, client.Command{Shell: "echo $A"}); err != nil || string(r.Stdout) != "b\n" {
		t.Errorf("with the token that was asked for: %+v, %v", r, err)
	}
	if i, err := s.SetDeadlines(ctx, client.DeadlinesChange{Metadata: map[string]string{"k": "w"}}); err != nil || len(i.Metadata) != 1 || i.Metadata["k"] != "w" || i.ExpiresAt.IsZero() {
		t.Errorf("other metadata: %+v, %v", i, err)
	}
	_, err = s.SetDeadlines(ctx, client.DeadlinesChange{Metadata: map[string]string{"": "w"}})
	wantCode(t, "metadata without a key", err, ringfence.CodeInvalidArgument)
	_, err = token.Get(ctx, s.ID())
	wantCode(t, "the control plane with a token", err, ringfence.CodePermissionDenied)

	if err := s.Kill(ctx); err != nil {
		t.Error(err)
	}
	if err := s.Kill(ctx); err != nil {
		t.Errorf("killed twice: %v", err)
	}
	if i, err := s.Refresh(ctx); err != nil || i.State != ringfence.StateDeleted || i.Reason != ringfence.ReasonKilled || i.EndedAt.IsZero() {
		t.Errorf("got %+v, %v", i, err)
	}
	_, err = s.Run(ctx, client.Command{Shell: "true"})
	wantCode(t, "a command in an ended sandbox", err, ringfence.CodeSandboxEnded)
	_, err = c.Get(ctx, "aaaaaaaaaaaaaaaaaaaa")
	wantCode(t, "an unknown sandbox", err, ringfence.CodeNotFound)
	if _, err = c.Get(ctx, "../keys"); err == nil {
		t.Error("an id that is a path reached something")
	}
	_, err = c.Create(ctx, client.CreateOptions{Template: "no-such"})
	wantCode(t, "an unknown template", err, ringfence.CodeTemplateNotFound)
	yes := true
	_, err = c.Create(ctx, client.CreateOptions{Network: &ringfence.NetworkPolicy{AllowInternetAccess: &yes}})
	wantCode(t, "a policy that opens the network", err, ringfence.CodeNotYetSupported)
	wrong, err := client.New(client.Options{BaseURL: c.URL(), APIKey: ringfence.NewAPIKey()})
	if err != nil {
		t.Fatal(err)
	}
	_, err = wrong.Templates(ctx)
	wantCode(t, "a wrong key", err, ringfence.CodeUnauthenticated)
}

func TestServerTemplatesAndKeys(t *testing.T) {
	c, ctx := connect(t), t.Context()
	if h, err := c.Health(ctx); err != nil || h.Status != "ok" || h.Version != "v0-test" {
		t.Errorf("got %+v, %v", h, err)
	}
	if list, err := c.Templates(ctx); err != nil || len(list) != 2 || list[1].Name != "code-interpreter" || list[1].VCPU != 2 || list[1].BuiltAt.IsZero() {
		t.Errorf("got %+v, %v", list, err)
	}
	if tm, err := c.Template(ctx, "superserve/code-interpreter"); err != nil || tm.Name != "code-interpreter" {
		t.Errorf("got %+v, %v", tm, err)
	}
	k, secret, err := c.CreateKey(ctx, "second")
	if err != nil {
		t.Fatal(err)
	}
	second, err := client.New(client.Options{BaseURL: c.URL(), APIKey: string(secret)})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := second.Keys(ctx)
	if err != nil || len(keys) != 2 || !slices.ContainsFunc(keys, func(o client.Key) bool { return o.ID == k.ID && o.Name == "second" }) {
		t.Errorf("got %+v, %v", keys, err)
	}
	if err := c.DeleteKey(ctx, k.ID); err != nil {
		t.Error(err)
	}
	_, err = second.Keys(ctx)
	wantCode(t, "a removed key", err, ringfence.CodeUnauthenticated)
}

func TestServerCommands(t *testing.T) {
	c, ctx := connect(t), t.Context()
	s := create(t, c, client.CreateOptions{})
	r, err := s.Run(ctx, client.Command{Shell: "pwd; echo $A; cat; whoami; echo oops >&2; exit 3", Env: map[string]string{"A": "b c"}, WorkDir: "/tmp",
		User: "user", Stdin: strings.NewReader("in\n")})
	if err != nil || r.ExitCode != 3 || string(r.Stdout) != "/tmp\nb c\nin\nuser\n" || string(r.Stderr) != "oops\n" || r.Err() == nil || r.StartedAt.IsZero() || r.ID == "" {
		t.Errorf("got %+v, %v", r, err)
	}
	if r, err := s.Run(ctx, client.Command{Args: []string{"echo", "a  b", "$A"}}); err != nil || string(r.Stdout) != "a  b $A\n" || r.Err() != nil {
		t.Errorf("got %+v, %v", r, err)
	}
	if r, err := s.Run(ctx, client.Command{Shell: "fake-bytes 1000", OutputLimit: 100}); err != nil || len(r.Stdout) != 100 || !r.StdoutTruncated || r.StderrTruncated {
		t.Errorf("got %d bytes, %v", len(r.Stdout), err)
	}
	r, err = s.Run(ctx, client.Command{Shell: "echo begun; sleep 60", Timeout: 100 * time.Millisecond})
	if err != nil || r.ExitCode != 124 || r.Reason != client.ReasonDeadline || string(r.Stdout) != "begun\n" {
		t.Errorf("past the deadline: %+v, %v", r, err)
	}
	if r, err := s.Run(ctx, client.Command{Shell: "fake-oom", Timeout: client.NoTimeout}); err != nil || r.ExitCode != 137 || r.Reason != client.ReasonOOM {
		t.Errorf("out of memory: %+v, %v", r, err)
	}
	if r, err := s.Run(ctx, client.Command{Args: []string{"no-such-program"}}); err != nil || r.ExitCode != 127 {
		t.Errorf("no such program: %+v, %v", r, err)
	}
	for what, cmd := range map[string]client.Command{
		"no such directory": {Shell: "true", WorkDir: "/no/such"}, "no such user": {Shell: "true", User: "nobody-here"},
		"nothing to run": {}, "both ways": {Shell: "true", Args: []string{"true"}}, "a limit too high": {Shell: "true", OutputLimit: 1 << 30},
	} {
		_, err := s.Run(ctx, cmd)
		wantCode(t, what, err, ringfence.CodeInvalidArgument)
	}
}

func TestServerStreams(t *testing.T) {
	c, ctx := connect(t), t.Context()
	s := create(t, c, client.CreateOptions{})
	plain, err := s.Run(ctx, client.Command{Shell: "fake-bytes 5000000"})
	if err != nil {
		t.Fatal(err)
	}
	hash := sha256.New()
	var stderr bytes.Buffer
	started := client.Started{}
	r, err := s.Run(ctx, client.Command{Shell: "fake-bytes 5000000; echo oops >&2; exit 4", Stdout: hash, Stderr: &stderr, Started: func(s client.Started) { started = s }})
	if err != nil || r.ExitCode != 4 || stderr.String() != "oops\n" || started.ID != r.ID || started.PID == 0 || r.Truncated() {
		t.Errorf("got %+v, %q, %+v, %v", r, stderr.String(), started, err)
	}
	if want := sha256.Sum256(plain.Stdout); !bytes.Equal(hash.Sum(nil), want[:]) {
		t.Error("the stream is not byte for byte what the plain answer holds")
	}

	// It comes while the command runs.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, err = s.Run(ctx, client.Command{Shell: "echo one; sleep 60; echo two", Stdout: client.WriterFunc(func(p []byte) error {
		if string(p) != "one\n" {
			t.Errorf("got %q", p)
		}
		cancel()
		return nil
	})})
	if !errors.Is(err, context.Canceled) || ringfence.CodeOf(err) != ringfence.CodeCanceled {
		t.Errorf("got %v", err)
	}

	// A sandbox that dies is an error, never exit code 0.
	r, err = s.Run(t.Context(), client.Command{Shell: "echo one; fake-crash", Stdout: io.Discard})
	wantCode(t, "the sandbox died", err, ringfence.CodeSandboxEnded)
	if r.ExitCode != -1 {
		t.Errorf("got exit code %d", r.ExitCode)
	}
	s = create(t, c, client.CreateOptions{})
	_, err = s.Run(t.Context(), client.Command{Shell: "fake-crash"})
	wantCode(t, "the sandbox died", err, ringfence.CodeSandboxEnded)
}

func TestServerFiles(t *testing.T) {
	c, ctx := connect(t), t.Context()
	files := create(t, c, client.CreateOptions{}).Files()
	large := make([]byte, 5<<20+3)
	for i := range large {
		large[i] = byte(i * i >> 3)
	}
	for _, name := range []string{"/tmp/plain", "/tmp/a b/ü/日本", "/tmp/-dash", "/tmp/new\nline", "/tmp/" + strings.Repeat("x", 255), "/tmp/\xff\xfe", "/tmp/q?a=b&c#d%20+"} {
		info, err := files.Write(ctx, name, bytes.NewReader(large), client.WriteOptions{Mode: 0o640, Owner: "user"})
		if err != nil || info.Path != name || info.Size != int64(len(large)) || info.Mode != 0o640 || info.Owner != "user" || info.Type != client.TypeFile {
			t.Errorf("%q: %+v, %v", name, info, err)
			continue
		}
		if b, err := files.ReadFile(ctx, name); err != nil || !bytes.Equal(b, large) {
			t.Errorf("%q: %d bytes, %v", name, len(b), err)
		}
		if info, err := files.Stat(ctx, name); err != nil || info.Path != name || info.Name != name[strings.LastIndexByte(name, '/')+1:] || info.ModifiedAt.IsZero() {
			t.Errorf("%q: %+v, %v", name, info, err)
		}
	}
	for _, tc := range [][2]int64{{0, 10}, {1 << 20, 5}, {5 << 20, 100}, {5 << 20, -1}, {0, 0}} {
		r, err := files.ReadRange(ctx, "/tmp/plain", tc[0], tc[1])
		if err != nil {
			t.Errorf("range %v: %v", tc, err)
			continue
		}
		b, err := io.ReadAll(r)
		r.Close()
		want := large[tc[0]:]
		if tc[1] >= 0 {
			want = want[:min(int(tc[1]), len(want))]
		}
		if err != nil || !bytes.Equal(b, want) {
			t.Errorf("range %v: %d bytes, %v", tc, len(b), err)
		}
	}
	if _, err := files.Write(ctx, "/tmp/chunked", io.MultiReader(strings.NewReader("ab"), strings.NewReader("cd")), client.WriteOptions{}); err != nil {
		t.Error(err)
	}
	if b, err := files.ReadFile(ctx, "/tmp/chunked"); err != nil || string(b) != "abcd" {
		t.Errorf("got %q, %v", b, err)
	}
	if _, err := files.Write(ctx, "/tmp/empty", strings.NewReader(""), client.WriteOptions{}); err != nil {
		t.Error(err)
	}
	if b, err := files.ReadFile(ctx, "/tmp/empty"); err != nil || len(b) != 0 {
		t.Errorf("got %q, %v", b, err)
	}
	// A body that breaks off leaves the old file.
	broken := errors.New("broken")
	_, err := files.Write(ctx, "/tmp/chunked", io.MultiReader(strings.NewReader("new"), errReader{broken}), client.WriteOptions{})
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if b, err := files.ReadFile(ctx, "/tmp/chunked"); err != nil || string(b) != "abcd" {
		t.Errorf("after a write that broke off: %q, %v", b, err)
	}

	written, err := files.As("user").WriteMany(ctx, []client.FileData{{Path: "/tmp/m/1", Data: strings.NewReader("1")}, {Path: "/tmp/m/n/2", Data: strings.NewReader("2")}})
	if err != nil || len(written) != 2 || written[1].Owner != "user" {
		t.Errorf("got %+v, %v", written, err)
	}
	entries, err := files.List(ctx, "/tmp/m", 2)
	var names []string
	for _, e := range entries {
		names = append(names, e.Path)
	}
	slices.Sort(names)
	if want := "[/tmp/m/1 /tmp/m/n /tmp/m/n/2]"; err != nil || fmt.Sprint(names) != want {
		t.Errorf("got %v, %v", names, err)
	}
	if info, err := files.Mkdir(ctx, "/tmp/d/e", client.MkdirOptions{Mode: 0o700, Owner: "user"}); err != nil || !info.IsDir() || info.Mode != 0o700 || info.Owner != "user" {
		t.Errorf("got %+v, %v", info, err)
	}
	if info, err := files.Rename(ctx, "/tmp/m/1", "/tmp/d/one"); err != nil || info.Path != "/tmp/d/one" {
		t.Errorf("got %+v, %v", info, err)
	}
	for path, want := range map[string]bool{"/tmp/m/1": false, "/tmp/d/one": true, "/tmp/d/one/below": false} {
		if ok, err := files.Exists(ctx, path); err != nil || ok != want {
			t.Errorf("exists %s: %v, %v", path, ok, err)
		}
	}
	wantCode(t, "remove a full directory", files.Remove(ctx, "/tmp/d"), ringfence.CodeDirectoryNotEmpty)
	if err := files.RemoveAll(ctx, "/tmp/d"); err != nil {
		t.Error(err)
	}
	wantCode(t, "remove what is not there", files.Remove(ctx, "/tmp/d"), ringfence.CodeFileNotFound)
	_, err = files.Read(ctx, "/tmp")
	wantCode(t, "read a directory", err, ringfence.CodeIsDirectory)
	_, err = files.Read(ctx, "relative")
	wantCode(t, "a relative path", err, ringfence.CodeInvalidArgument)
	_, err = files.ReadRange(ctx, "/tmp/chunked", 99, 1)
	wantCode(t, "a range beyond the end", err, ringfence.CodeRangeInvalid)
	_, err = files.As("user").Write(ctx, "/etc/passwd", strings.NewReader("x"), client.WriteOptions{})
	wantCode(t, "a file of root", err, ringfence.CodeFilePermission)
	_, err = files.List(ctx, "/tmp/chunked", 1)
	wantCode(t, "list a file", err, ringfence.CodeNotDirectory)

	local, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	if _, err := local.Write(large); err != nil {
		t.Fatal(err)
	}
	if _, err := local.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if info, err := files.Write(ctx, "/tmp/local", local, client.WriteOptions{}); err != nil || info.Size != int64(len(large)) {
		t.Errorf("got %+v, %v", info, err)
	}
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }
