package declaw

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/api/apitest"
	"ringfence.dev/ringfence/internal/dialect"
	"ringfence.dev/ringfence/internal/driver/fake"
)

// world is a server with the dialect over sandboxes in memory.
type world struct {
	*apitest.Server
	t *testing.T
}

// never is a hold that no test outlives.
const never = time.Hour

func newWorld(t *testing.T, hold time.Duration) *world {
	m := Mount()
	m.New = func(s dialect.Services) http.Handler {
		s.KeepAlive = 5 * time.Millisecond
		return newHandler(s, hold)
	}
	return &world{apitest.Start(t, fake.Options{}, m), t}
}

// opened is an answer whose headers are there; the test's end closes it.
type opened struct {
	status int
	header http.Header
	body   io.ReadCloser
}

// open sends a request, and returns its answer when the headers are there.
func (w *world) open(method, path, body string, headers ...string) opened {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	w.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, w.URL+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+w.Key)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { resp.Body.Close() })
	return opened{resp.StatusCode, resp.Header, resp.Body}
}

func (w *world) send(method, path, body string, headers ...string) (int, string) {
	w.t.Helper()
	resp := w.open(method, path, body, headers...)
	raw, err := io.ReadAll(resp.body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.status, string(raw)
}

// want sends a request and decodes its answer, which has to have the status.
func want[T any](w *world, status int, method, path, body string, headers ...string) (out T) {
	w.t.Helper()
	got, text := w.send(method, path, body, headers...)
	if got != status {
		w.t.Fatalf("%s %s: %d %s, want %d", method, path, got, text, status)
	}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		w.t.Fatalf("%s %s: %v: %s", method, path, err, text)
	}
	return out
}

func (w *world) create(body string) string {
	w.t.Helper()
	return want[sandboxBody](w, http.StatusCreated, "POST", "/sandboxes", body).SandboxID
}

func (w *world) at(id, rest string) string { return "/sandboxes/" + id + rest }

// startFile is what a command writes to say that it runs.
func (w *world) startFile(id string) {
	w.t.Helper()
	path := w.at(id, "/files/exists?path=/tmp/started")
	for end := time.Now().Add(time.Minute); !want[map[string]bool](w, 200, "GET", path, "")["exists"]; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatal("the command does not start")
		}
	}
}

func TestDeadlineOfCommand(t *testing.T) {
	const body = `{"cmd":"echo said; sleep 60","timeout":0.2}`
	held, late := newWorld(t, never), newWorld(t, 0)
	id := held.create("{}")
	if e := want[errorBody](held, http.StatusRequestTimeout, "POST", held.at(id, "/commands"), body); !strings.Contains(e.Message, "timeout") {
		t.Errorf("the message is %q", e.Message)
	}
	id = late.create("{}")
	r := want[resultBody](late, http.StatusOK, "POST", late.at(id, "/commands"), body)
	if r.ExitCode != 124 || r.Stdout != "said\n" || !strings.Contains(r.Stderr, "timeout") {
		t.Errorf("after the headers: %+v", r)
	}
	// The wait for a process has no deadline of its own: the result is the process's.
	for _, w := range []*world{held, late} {
		id := w.create("{}")
		p := want[map[string]int](w, 200, "POST", w.at(id, "/commands"), `{"cmd":"echo said; sleep 60","timeout":0.2,"background":true}`)
		r := want[resultBody](w, 200, "GET", w.at(id, fmt.Sprintf("/commands/%d/wait", p["pid"])), "")
		if r.ExitCode != 124 || r.Stdout != "said\n" || !strings.Contains(r.Stderr, "timeout") {
			t.Errorf("wait: %+v", r)
		}
	}
}

// A sandbox that is killed under a command, and under a wait.
func TestKilledUnderCommand(t *testing.T) {
	for _, hold := range []time.Duration{never, 0} {
		for _, wait := range []bool{false, true} {
			t.Run(fmt.Sprintf("hold %v wait %t", hold, wait), func(t *testing.T) {
				w := newWorld(t, hold)
				id := w.create("{}")
				method, path, body := "POST", w.at(id, "/commands"), `{"cmd":"echo said; echo x > /tmp/started; sleep 600","timeout":0}`
				if wait {
					p := want[map[string]int](w, 200, "POST", path, strings.Replace(body, "{", `{"background":true,`, 1))
					method, path, body = "GET", w.at(id, fmt.Sprintf("/commands/%d/wait", p["pid"])), ""
				}
				answered := make(chan opened, 1)
				go func() { answered <- w.open(method, path, body) }()
				w.startFile(id)
				if hold == 0 {
					resp := <-answered
					if n, err := resp.body.Read(make([]byte, 1)); n != 1 || err != nil {
						t.Fatal(err)
					}
					answered <- resp
				}
				if status, text := w.send("DELETE", w.at(id, ""), ""); status != 200 {
					t.Fatal(text)
				}
				resp := <-answered
				raw, err := io.ReadAll(resp.body)
				if err != nil {
					t.Fatal(err)
				}
				switch {
				case hold == 0:
					var r resultBody
					if err := json.Unmarshal(raw, &r); err != nil || resp.status != 200 || r.ExitCode != 137 || !strings.Contains(r.Stderr, "it was killed") {
						t.Errorf("%d %s %v", resp.status, raw, err)
					}
				case wait && resp.status == http.StatusGone: // it came after the end
				case resp.status != http.StatusNotFound || !strings.Contains(string(raw), "it was killed"):
					t.Errorf("%d %s", resp.status, raw)
				}
				if status, text := w.send("GET", w.at(id, "/files?path=/etc"), ""); status != http.StatusGone {
					t.Errorf("a later call: %d %s", status, text)
				}
				if s := want[sandboxBody](w, 200, "GET", w.at(id, ""), ""); s.State != "killed" || s.EndAt == nil {
					t.Errorf("it reads %+v", s)
				}
			})
		}
	}
}

// After the headers, a space says every so often that there is more to come.
func TestKeepAlives(t *testing.T) {
	w := newWorld(t, 0)
	id := w.create("{}")
	resp := w.open("POST", w.at(id, "/commands"), `{"cmd":"sleep 600","timeout":0}`)
	buf := make([]byte, 3)
	if _, err := io.ReadFull(resp.body, buf); err != nil || string(buf) != "   " || resp.header.Get("Content-Type") != "application/json" {
		t.Errorf("%q %v", buf, err)
	}
}

// events reads server-sent events.
func events(t *testing.T, resp opened, until string) (out [][2]string) {
	t.Helper()
	lines := bufio.NewScanner(resp.body)
	var name string
	for lines.Scan() {
		line := lines.Text()
		if after, ok := strings.CutPrefix(line, "event: "); ok {
			name = after
		} else if data, ok := strings.CutPrefix(line, "data: "); ok {
			if out = append(out, [2]string{name, data}); name == until {
				return out
			}
		} else if line != "" && !strings.HasPrefix(line, ":") {
			t.Fatalf("the line %q", line)
		}
	}
	t.Fatalf("it ended without %s: %v", until, out)
	return nil
}

func TestStream(t *testing.T) {
	w := newWorld(t, never)
	id := w.create("{}")
	path := w.at(id, "/commands/stream")
	got := events(t, w.open("POST", path, `{"cmd":"echo a; echo b >&2; exit 3","stream":true}`), "exit")
	wanted := [][2]string{
		{"stdout", `{"type":"stdout","stream":"stdout","data":"a\n"}`}, {"stderr", `{"type":"stderr","stream":"stderr","data":"b\n"}`}, {"exit", `{"exit_code":3}`},
	}
	if fmt.Sprint(got) != fmt.Sprint(wanted) {
		t.Errorf("%v", got)
	}
	got = events(t, w.open("POST", path, `{"cmd":"sleep 60","timeout":0.1}`), "exit")
	if got[len(got)-1][1] != `{"exit_code":124}` || !strings.Contains(got[0][1], "timeout") {
		t.Errorf("a deadline: %v", got)
	}
	resp := w.open("POST", path, `{"cmd":"echo x > /tmp/started; sleep 600","timeout":0}`)
	w.startFile(id)
	w.send("DELETE", w.at(id, ""), "")
	got = events(t, resp, "exit")
	if got[len(got)-1][1] != `{"exit_code":137}` || !strings.Contains(got[0][1], "it was killed") {
		t.Errorf("a kill: %v", got)
	}
	if status, text := w.send("POST", path, `{"cmd":"true"}`); status != http.StatusGone || !strings.Contains(text, `"message":`) {
		t.Errorf("after it: %d %s", status, text)
	}
	// The Python SDK sends its key in another header, and does not look at the status.
	got = events(t, w.open("POST", path, `{"cmd":"true"}`, "Authorization", "", "X-API-Key", w.Key, "User-Agent", "python-httpx/0.28"), "exit")
	if got[0][0] != "stderr" || !strings.Contains(got[0][1], "has ended") || got[1][1] != `{"exit_code":1}` {
		t.Errorf("for Python: %v", got)
	}
}

// A character that comes in two pieces stays one.
func TestTextEvents(t *testing.T) {
	w := newWorld(t, never)
	id := w.create("{}")
	w.send("PUT", w.at(id, "/files/raw?path=/bytes"), "caf\xc3\xa9 \xff\xe2\x82")
	var all strings.Builder
	for _, e := range events(t, w.open("POST", w.at(id, "/commands/stream"), `{"cmd":"cat /bytes"}`), "exit") {
		var body streamBody
		if err := json.Unmarshal([]byte(e[1]), &body); err != nil {
			t.Fatal(err)
		}
		all.WriteString(body.Data)
	}
	if all.String() != "café \uFFFD\uFFFD" {
		t.Errorf("%q", all.String())
	}
}

func TestStdioResumes(t *testing.T) {
	w := newWorld(t, never)
	id := w.create("{}")
	process := want[map[string]string](w, 200, "POST", w.at(id, "/stdio"), `{"cmd":"cat"}`)["cmd_id"]
	at := w.at(id, "/stdio/"+process)
	first := w.open("GET", at+"/stream", "")
	w.send("POST", at+"/stdin", `{"data":"`+base64.StdEncoding.EncodeToString([]byte("one\n"))+`"}`)
	got := events(t, first, "stdout")
	var entry dataBody
	if err := json.Unmarshal([]byte(got[0][1]), &entry); err != nil || entry.EntryID < 1 || entry.Data != "b25lCg==" {
		t.Fatalf("%v %v", got, err)
	}
	first.body.Close()
	w.send("POST", at+"/stdin", `{"data":"dHdvCg=="}`)
	if status, text := w.send("POST", at+"/stdin/close", ""); status != 200 || text != "{}\n" {
		t.Errorf("%d %s", status, text)
	}
	rest := events(t, w.open("GET", at+"/stream?last_entry_id="+strconv.FormatUint(entry.EntryID, 10), ""), "exit")
	if len(rest) != 2 || !strings.Contains(rest[0][1], "dHdvCg==") || rest[1][1] != `{"exit_code":0}` {
		t.Errorf("resumed: %v", rest)
	}
	if all := events(t, w.open("GET", at+"/stream", ""), "exit"); len(all) < 2 || !strings.Contains(fmt.Sprint(all), "b25l") {
		t.Errorf("from the beginning: %v", all)
	}
	for path, body := range map[string]string{at + "/stdin": `{"data":"not base64"}`, w.at(id, "/commands/x/stdin"): `{"data":"x"}`} {
		if status, text := w.send("POST", path, body); status != 400 {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

func TestRefused(t *testing.T) {
	w := newWorld(t, never)
	policy := func(inner string) string {
		raw, _ := json.Marshal(map[string]any{"security": map[string]string{"policy_json": inner}})
		return string(raw)
	}
	for body, names := range map[string]string{
		policy(`{"pii":{"enabled":true}}`):                                     "pii",
		policy(`{"injection_defense":true}`):                                   "injection_defense",
		policy(`{"transformations":[{"match":"a"}],"toxicity":{"enabled":1}}`): "toxicity, transformations",
		policy(`{"something_new":{"enabled":true}}`):                           "something_new",
		`{"security":{"pii":{"enabled":true},"audit":true}}`:                   "pii",
		`{"security":{"custom_policy":{"policy_ref":"x@v1"}}}`:                 "custom_policy",
		`{"volumes":[{"volume_id":"v"}],"vault_refs":{"A":"vault://x"}}`:       "vault_refs, volumes",
		`{"network":{"mask_request_host":"a.b"}}`:                              "network.mask_request_host",
	} {
		if e := want[errorBody](w, 400, "POST", "/sandboxes", body); !strings.Contains(e.Message, names) {
			t.Errorf("%s: %s", body, e.Message)
		}
	}
	for _, body := range []string{
		policy(`{"pii":{"enabled":false,"types":["email"]},"injection_defense":{"enabled":false,"judge":{"enabled":true}},"transformations":[],"audit":{"enabled":true},
			"env_security":{"mask_patterns":["*_KEY"]},"toxicity":null,"network":{"deny_out":["10.0.0.0/8"]}}`),
		policy(""), `{"security":null,"volumes":[],"vault_refs":{},"network":null,"metadata":null}`, `{"security":{"injection_defense":false,"audit":false}}`, "",
	} {
		w.create(body)
	}
	for body, status := range map[string]int{
		`{"resources":{"vcpus":4}}`: 403, `{"timeout":-1}`: 400, `{"timeout":"x"}`: 400, `{"template":"nothing"}`: 404, `{"lifecycle":{"on_timeout":"stop"}}`: 400,
		policy("{"): 400, `{"security":7}`: 400, `[`: 400, `{"envs":{"A=":"x"}}`: 400,
	} {
		if e := want[errorBody](w, status, "POST", "/sandboxes", body); e.Message == "" {
			t.Errorf("%s is refused without a word", body)
		}
	}
	for _, path := range []string{"/volumes", "/volumes/empty?name=x", "/vault/presets", "/teams", "/teams/t/vault/secrets", "/templates/builds/b", "/governance/packs", "/accounts/me"} {
		if e := want[errorBody](w, 400, "GET", path, ""); !strings.Contains(e.Message, "does not support") {
			t.Errorf("%s: %s", path, e.Message)
		}
	}
	for _, path := range []string{"/sandboxes/a/../b", "/sandboxes//status", "/sandboxes/x/nothing"} {
		if status, text := w.send("GET", path, ""); status != 404 || !strings.Contains(text, "message") {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

func TestAccess(t *testing.T) {
	w := newWorld(t, never)
	made := want[sandboxBody](w, 201, "POST", "/sandboxes", `{"template":"tpl-base"}`)
	other := w.create("{}")
	token := "Bearer " + made.EnvdAccessToken
	for path, status := range map[string]int{w.at(made.SandboxID, ""): 200, w.at(made.SandboxID, "/status"): 200, w.at(other, ""): 404, "/sandboxes": 403, w.at(made.SandboxID, "?timeout=9"): 403} {
		if got, text := w.send("GET", path, "", "Authorization", token); got != status {
			t.Errorf("%s with a token: %d %s", path, got, text)
		}
	}
	for _, key := range []string{"", "Bearer dcl_wrong", "Bearer " + ringfence.NewAPIKey()} {
		if e := want[errorBody](w, 401, "GET", "/sandboxes", "", "Authorization", key); !strings.HasPrefix(e.Message, "unauthorized: missing or invalid API key") {
			t.Errorf("%q: %s", key, e.Message)
		}
	}
	want[map[string]any](w, 200, "GET", "/sandboxes", "", "Authorization", "", "X-API-Key", w.Key)
	if me := want[map[string]string](w, 200, "GET", "/auth/me", ""); me["owner_id"] != ringfence.DefaultProject {
		t.Errorf("%v", me)
	}
	if list := want[map[string][]map[string]any](w, 200, "GET", "/templates", ""); len(list["templates"]) != 2 {
		t.Errorf("%v", list)
	}
	// The native API is where it was.
	want[map[string]any](w, 200, "GET", "/v1/sandboxes", "")
}

func TestListPages(t *testing.T) {
	w := newWorld(t, never)
	var ids []string
	for range 5 {
		ids = append(ids, w.create(`{"metadata":{"n":"1"}}`))
	}
	w.send("DELETE", w.at(ids[4], "?async=true"), "")
	type list struct {
		Sandboxes []sandboxBody `json:"sandboxes"`
		NextToken *string       `json:"next_token"`
		Total     int           `json:"total"`
	}
	get := func(query string) list { return want[list](w, 200, "GET", "/sandboxes?"+query, "") }
	first := get("limit=3")
	second := get("limit=3&next_token=" + *first.NextToken)
	if len(first.Sandboxes) != 3 || len(second.Sandboxes) != 1 || second.NextToken != nil || first.Total != 4 {
		t.Errorf("%d and %d of %d", len(first.Sandboxes), len(second.Sandboxes), first.Total)
	}
	if got := get("offset=2&limit=1"); len(got.Sandboxes) != 1 || got.Sandboxes[0].SandboxID != ids[1] {
		t.Errorf("offset: %+v", got)
	}
	for query, n := range map[string]int{
		"state=all": 5, "state=killed": 1, "state=running&state=paused": 4, "state=live": 4, "metadata=" + url.QueryEscape("{'n': '1'}"): 4, "metadata=" + url.QueryEscape(`{"n":"2"}`): 0,
	} {
		if got := get(query); len(got.Sandboxes) != n {
			t.Errorf("%s: %d, want %d", query, len(got.Sandboxes), n)
		}
	}
	for _, query := range []string{"state=ended", "limit=x", "next_token=x", "offset=-1"} {
		if status, text := w.send("GET", "/sandboxes?"+query, ""); status != 400 {
			t.Errorf("%s: %d %s", query, status, text)
		}
	}
}

func TestIdempotency(t *testing.T) {
	w := newWorld(t, never)
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			resp := w.open("POST", "/sandboxes", `{"timeout":60}`, "Idempotency-Key", "k")
			var s sandboxBody
			if err := json.NewDecoder(resp.body).Decode(&s); err != nil || resp.status != 201 || s.EnvdAccessToken == "" {
				t.Errorf("%d %v", resp.status, err)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[s.SandboxID] = true
		})
	}
	wg.Wait()
	if len(seen) != 1 {
		t.Errorf("one key made %v", seen)
	}
	if e := want[errorBody](w, 422, "POST", "/sandboxes", `{"timeout":61}`, "Idempotency-Key", "k"); e.Code != "idempotency_key_reused" {
		t.Errorf("%+v", e)
	}
}
