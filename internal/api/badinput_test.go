package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/engine"
)

func TestNoKeyOrAWrongOne(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	for _, headers := range [][]string{
		{"Authorization", "-"},
		{"Authorization", "Bearer " + ringfence.NewAPIKey()},
		{"Authorization", "Bearer nonsense"},
		{"Authorization", "Basic " + w.key},
		{"Authorization", "Bearer " + ringfence.NewToken()},
		{"Authorization", "-", "X-API-Key", ringfence.NewAPIKey()},
		{"Authorization", "-", "X-Access-Token", ringfence.NewToken()},
	} {
		for _, path := range []string{"/v1/sandboxes", "/v1/sandboxes/" + id, "/v1/sandboxes/" + id + "/files?path=/", "/v1/keys"} {
			r := w.send("GET", path, "", headers...)
			w.refused(r, 401, ringfence.CodeUnauthenticated, "")
			if r.Header.Get("WWW-Authenticate") == "" {
				t.Error("a 401 without WWW-Authenticate")
			}
		}
	}
	// Who sent none is told so.
	e := w.refused(w.send("GET", "/v1/sandboxes", "", "Authorization", "-"), 401, ringfence.CodeUnauthenticated, "")
	if !strings.Contains(fmt.Sprint(e["message"]), "no API key") {
		t.Errorf("no key at all: %v", e["message"])
	}
}

func TestSpellingsOfAKey(t *testing.T) {
	w := newWorld(t)
	digits := strings.TrimPrefix(w.key, "rf_")
	for _, headers := range [][]string{
		{"Authorization", "bearer e2b_" + digits},
		{"Authorization", "-", "X-API-Key", w.key},
		{"Authorization", "-", "X-API-KEY", "e2b_" + strings.ToUpper(digits)},
	} {
		if r := w.send("GET", "/v1/sandboxes", "", headers...); r.StatusCode != 200 {
			t.Errorf("%v: %d %s", headers, r.StatusCode, r.body)
		}
	}
}

// Nothing tells a foreign sandbox from one that does not exist, but the id itself.
func TestUnknownAndForeignAreTheSame(t *testing.T) {
	w := newWorld(t)
	own := w.create("{}")
	other := w.create("{}")
	if err := w.store.EnsureProject(t.Context(), ringfence.Project{ID: "other", Name: "other", CreatedAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	_, foreignKey, err := w.engine.CreateKey(t.Context(), "other", "")
	if err != nil {
		t.Fatal(err)
	}
	ended := w.createID()
	w.send("DELETE", "/v1/sandboxes/"+ended, "")
	unknown := ringfence.NewSandboxID()
	for _, rt := range [][2]string{
		{"GET", ""}, {"DELETE", ""}, {"POST", "/commands"}, {"GET", "/files?path=/x"}, {"PUT", "/files?path=/x"}, {"DELETE", "/files?path=/x"},
		{"GET", "/files/stat?path=/x"}, {"GET", "/files/list?path=/x"}, {"POST", "/files/mkdir"}, {"POST", "/files/rename"},
	} {
		body := map[string]string{"/commands": `{"command":"true"}`, "/files/mkdir": `{"path":"/x"}`, "/files/rename": `{"from":"/x","to":"/y"}`}[rt[1]]
		text := func(id string, headers ...string) string {
			r := w.send(rt[0], "/v1/sandboxes/"+id+rt[1], body, headers...)
			e := w.refused(r, 404, ringfence.CodeNotFound, "")
			delete(e, "request_id")
			return strings.ReplaceAll(fmt.Sprint(e), id, "ID")
		}
		want := text(unknown)
		for _, id := range []string{own["id"].(string), ended, "short", unknown} {
			if got := text(id, "Authorization", "Bearer "+foreignKey); got != want {
				t.Errorf("%s %s: a foreign sandbox gets %s, an unknown one %s", rt[0], rt[1], got, want)
			}
		}
		if rt[1] == "" {
			continue
		}
		for _, id := range []string{own["id"].(string), unknown} {
			if got := text(id, "Authorization", "Bearer "+other["access_token"].(string)); got != want {
				t.Errorf("%s %s: a neighbour's token gets %s, want %s", rt[0], rt[1], got, want)
			}
		}
	}
}

func TestAccessToken(t *testing.T) {
	w := newWorld(t)
	sb := w.create("{}")
	id, token := sb["id"].(string), sb["access_token"].(string)
	auth := []string{"Authorization", "-", "X-Access-Token", token}
	if r := w.run(id, `{"command":"echo hi"}`, auth...); r.StatusCode != 200 || r.json(t)["stdout"] != "hi\n" {
		t.Errorf("a command: %d %s", r.StatusCode, r.body)
	}
	if r := w.send("PUT", "/v1/sandboxes/"+id+"/files?path=/x", "abc", auth...); r.StatusCode != 200 {
		t.Errorf("a file: %d %s", r.StatusCode, r.body)
	}
	for _, rt := range [][2]string{
		{"GET", "/v1/sandboxes"}, {"POST", "/v1/sandboxes"}, {"GET", "/v1/sandboxes/" + id}, {"DELETE", "/v1/sandboxes/" + id},
		{"GET", "/v1/templates"}, {"GET", "/v1/templates/base"}, {"GET", "/v1/keys"}, {"POST", "/v1/keys"}, {"DELETE", "/v1/keys/x"},
	} {
		w.refused(w.send(rt[0], rt[1], "", auth...), 403, ringfence.CodePermissionDenied, "")
	}
	if r := w.send("GET", "/v1/sandboxes/"+id, ""); strings.Contains(string(r.body), token) || strings.Contains(string(r.body), "access_token") {
		t.Errorf("the token is shown again: %s", r.body)
	}
	if strings.Contains(w.log.String(), token) || strings.Contains(w.log.String(), w.key) {
		t.Error("a secret is in the log")
	}
	w.send("DELETE", "/v1/sandboxes/"+id, "")
	w.refused(w.run(id, `{"command":"true"}`, auth...), 410, ringfence.CodeSandboxEnded, "")
}

func TestUnknownFields(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	for _, tc := range []struct{ method, path, body, field string }{
		{"POST", "/v1/sandboxes", `{"nam":"x"}`, "nam"},
		{"POST", "/v1/sandboxes", `{"Name":"x"}`, "Name"},
		{"POST", "/v1/sandboxes", `{"name":"x","name":"y"}`, "name"},
		{"POST", "/v1/sandboxes", `{"network":{"deny_out":[],"deny":1}}`, "network.deny"},
		{"POST", "/v1/sandboxes", `{"vcpu":"two"}`, "vcpu"},
		{"POST", "/v1/sandboxes", `{"network":{"deny_out":"10.0.0.0/8"}}`, "network.deny_out"},
		{"POST", "/v1/sandboxes", `{"metadata":{"a":1}}`, "metadata.a"},
		{"POST", "/v1/sandboxes", `{"metadata":{"a":null}}`, "metadata.a"},
		{"POST", "/v1/sandboxes", `{"env":{"A":null}}`, "env.A"},
		{"POST", "/v1/sandboxes", `{"network":{"deny_out":["10.0.0.0/8",null]}}`, "network.deny_out[1]"},
		{"POST", "/v1/sandboxes", `{"network":[1,{"a":2}]}`, "network"},
		{"POST", "/v1/keys", `{"text":"rf_"}`, "text"},
		{"POST", "/v1/sandboxes/" + id + "/commands", `{"command":"true","timeout":3}`, "timeout"},
		{"POST", "/v1/sandboxes/" + id + "/files/mkdir", `{"path":"/x","recursive":true}`, "recursive"},
		{"POST", "/v1/sandboxes/" + id + "/files/rename", `{"from":"/x","to":"/y","overwrite":true}`, "overwrite"},
		{"GET", "/v1/sandboxes?page=2", "", "page"},
		{"GET", "/v1/sandboxes?metadata.=2", "", "metadata."},
		{"GET", "/v1/sandboxes?limit=1&limit=2", "", "limit"},
		{"GET", "/v1/sandboxes/" + id + "?verbose", "", "verbose"},
		{"GET", "/v1/sandboxes/" + id + "/files?path=/x&offset=3", "", "offset"},
		{"DELETE", "/v1/sandboxes/" + id + "/files?path=/x&force=true", "", "force"},
	} {
		t.Run(tc.body+tc.path, func(t *testing.T) {
			e := w.refused(w.send(tc.method, tc.path, tc.body), 400, ringfence.CodeInvalidArgument, tc.field)
			if !strings.Contains(fmt.Sprint(e["message"]), tc.field) {
				t.Errorf("the message does not name %s: %v", tc.field, e["message"])
			}
		})
	}
	// What is wrong is the element, and is said of the element.
	for body, message := range map[string]string{
		`{"args":["true",1]}`:                            "args[1] has to be a string, not number",
		`{"args":["true",null]}`:                         "args[1] has to be a string, not null",
		`{"args":"true"}`:                                "args has to be a list, not string",
		`{"command":"true","env":{"A":true}}`:            "env.A has to be a string, not bool",
		`{"command":"true","output_limit_bytes":1e3}`:    "output_limit_bytes is 1e3; it has to be a whole number of at most 64 bits, without a point or an exponent",
		`{"command":"true","output_limit_bytes":"many"}`: "output_limit_bytes has to be a whole number, not string",
	} {
		field, _, _ := strings.Cut(message, " ")
		if e := w.refused(w.run(id, body), 400, ringfence.CodeInvalidArgument, field); e["message"] != message {
			t.Errorf("%s: %v", body, e["message"])
		}
	}
	for _, body := range []string{`{"name":`, `[]`, `"x"`, `{} {}`, `{"name":"a"}x`, "\xff", "{\"name\":\"\xff\"}"} {
		w.refused(w.send("POST", "/v1/sandboxes", body), 400, ringfence.CodeInvalidArgument, "")
	}
}

func TestUnknownTemplate(t *testing.T) {
	w := newWorld(t)
	e := w.refused(w.send("POST", "/v1/sandboxes", `{"template":"code-interpretr"}`), 404, ringfence.CodeTemplateNotFound, "")
	if !strings.Contains(fmt.Sprint(e["hint"]), "code-interpreter") {
		t.Errorf("the hint lists no near names: %v", e["hint"])
	}
	w.refused(w.send("GET", "/v1/templates/nonsense", ""), 404, ringfence.CodeTemplateNotFound, "")
	for _, path := range []string{"/v1/templates/superserve/code-interpreter", "/v1/templates/superserve%2Fcode-interpreter"} {
		if r := w.send("GET", path, ""); r.StatusCode != 200 || r.json(t)["name"] != "code-interpreter" {
			t.Errorf("%s: %d %s", path, r.StatusCode, r.body)
		}
	}
}

func TestTooLarge(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	big := `{"command":"true","stdin":"` + strings.Repeat("x", 1<<20) + `"}`
	w.refused(w.run(id, big), 413, ringfence.CodeTooLarge, "")
	// Without a Content-Length as well.
	r := w.sendCtx(t.Context(), "POST", "/v1/sandboxes/"+id+"/commands", struct{ *strings.Reader }{strings.NewReader(big)})
	w.refused(r, 413, ringfence.CodeTooLarge, "")
	// A file is no JSON body.
	if r := w.send("PUT", "/v1/sandboxes/"+id+"/files?path=/big", big+big); r.StatusCode != 200 {
		t.Errorf("a file of 2 MiB: %d %s", r.StatusCode, r.body)
	}
}

func TestMemoryReserve(t *testing.T) {
	w := newWorld(t)
	w.host.set(3000)
	r := w.send("POST", "/v1/sandboxes", `{"memory_mib":2001}`)
	w.refused(r, 429, ringfence.CodeResourceExhausted, "memory_mib")
	if r.Header.Get("Retry-After") == "" {
		t.Error("a 429 without Retry-After")
	}
	w.create(`{"memory_mib":2000}`)
}

func TestOperatorsMaxima(t *testing.T) {
	w := newWorld(t)
	for body, field := range map[string]string{
		`{"vcpu":5}`: "vcpu", `{"vcpu":0}`: "vcpu", `{"vcpu":-1}`: "vcpu",
		`{"memory_mib":4097}`: "memory_mib", `{"memory_mib":127}`: "memory_mib",
		`{"disk_mib":10001}`: "disk_mib", `{"disk_mib":15}`: "disk_mib",
		`{"timeout_seconds":0}`: "timeout_seconds", `{"timeout_seconds":-1}`: "timeout_seconds", `{"timeout_seconds":"1"}`: "timeout_seconds", `{"timeout_seconds":1e99}`: "timeout_seconds",
		`{"name":"a\u0000b"}`: "name", `{"env":{"A=B":"x"}}`: "env", `{"env":{"":"x"}}`: "env", `{"user":"a b"}`: "user",
		`{"name":"` + strings.Repeat("x", 129) + `"}`: "name", `{"metadata":{"":"x"}}`: "metadata",
		`{"on_timeout":"stop"}`: "on_timeout", `{"auto_delete_seconds":-1}`: "auto_delete_seconds", `{"idle_timeout_seconds":0}`: "idle_timeout_seconds",
		`{"auto_resume":"yes"}`: "auto_resume",
	} {
		e := w.refused(w.send("POST", "/v1/sandboxes", body), 400, ringfence.CodeInvalidArgument, field)
		if field == "memory_mib" && body == `{"memory_mib":4097}` && !strings.Contains(fmt.Sprint(e["message"]), "4096") {
			t.Errorf("the message does not say the maximum: %v", e["message"])
		}
	}
	w.create(`{"name":null,"env":null,"metadata":null,"user":null,"template":null,"vcpu":null,"network":null,"timeout_seconds":null,"idle_timeout_seconds":null}`)
}

// A project's quotas are refused by name: 403 for what can never be, else 429.
func TestQuotas(t *testing.T) {
	w := newWorld(t)
	w.engine.Quota = engine.Quota{VCPU: 3, Snapshots: 1}
	w.refused(w.send("POST", "/v1/sandboxes", `{"vcpu":4}`), 403, ringfence.CodePermissionDenied, "quota_vcpu")
	id := w.create(`{"vcpu":2}`)["id"].(string)
	r := w.send("POST", "/v1/sandboxes", `{"vcpu":2}`)
	w.refused(r, 429, ringfence.CodeResourceExhausted, "quota_vcpu")
	if r.Header.Get("Retry-After") == "" {
		t.Error("a 429 without Retry-After")
	}
	if r := w.send("POST", "/v1/sandboxes/"+id+"/snapshots", `{}`); r.StatusCode != 201 {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	w.refused(w.send("POST", "/v1/sandboxes/"+id+"/snapshots", `{}`), 429, ringfence.CodeResourceExhausted, "quota_snapshots")
}

func TestNotYetSupported(t *testing.T) {
	w := newWorld(t)
	for body, field := range map[string]string{
		`{"network":{"allow_out":["example.com"]}}`: "network.allow_out", `{"network":{"allow_internet_access":true}}`: "network.allow_internet_access",
	} {
		e := w.refused(w.send("POST", "/v1/sandboxes", body), 400, ringfence.CodeNotYetSupported, field)
		if strings.HasPrefix(field, "network") && !strings.Contains(fmt.Sprint(e["message"]), "have no network") {
			t.Errorf("%s: %v", body, e["message"])
		}
	}
	for _, entry := range []string{"300.0.0.1", "10.0.0.0/33", "a b", "", "-x.example", "http://x"} {
		w.refused(w.send("POST", "/v1/sandboxes", fmt.Sprintf(`{"network":{"deny_out":["0.0.0.0/0",%q]}}`, entry)), 400, ringfence.CodeInvalidArgument, "network.deny_out[1]")
	}
	sb := w.create(`{"network":{"deny_out":["0.0.0.0/0","::/0","10.1.2.3","*.example.com"],"allow_internet_access":false}}`)
	if got := fmt.Sprint(sb["network"]); got != "map[allow_internet_access:false allow_out:[] deny_out:[0.0.0.0/0 ::/0 10.1.2.3 *.example.com]]" {
		t.Errorf("network: %s", got)
	}
}

func TestHost(t *testing.T) {
	w := newWorld(t)
	for host, want := range map[string]int{
		"localhost": 200, "localhost:7070": 200, "LOCALHOST.": 200, "127.0.0.1": 200, "127.0.0.1:1": 200, "[::1]:7070": 200, "[::ffff:127.0.0.1]": 200,
		"sandbox.example": 200, "Sandbox.Example:443": 200,
		"evil.example": 421, "127.0.0.1.evil.example": 421, "127.0.0.2": 421, "10.0.0.1:7070": 421, "sandbox.example.evil.example": 421, "xlocalhost": 421,
	} {
		for _, path := range []string{"/health", "/v1/sandboxes"} {
			r := w.send("GET", path, "", "Host", host)
			if r.StatusCode != want {
				t.Errorf("Host %s: %d, want %d", host, r.StatusCode, want)
			}
			if want == 421 {
				w.refused(r, 421, ringfence.CodeMisdirected, "")
			}
		}
	}
}

func TestRouting(t *testing.T) {
	w := newWorld(t)
	for path, method := range map[string]string{"/": "GET", "/v1": "GET", "/v2/sandboxes": "GET", "//v1/sandboxes": "GET", "/v1/../v1/sandboxes": "GET", "/v1/sandboxes/": "GET", "/v1/sandboxes/a/b": "GET"} {
		w.refused(w.send(method, path, ""), 404, ringfence.CodeRouteNotFound, "")
	}
	r := w.send("PATCH", "/v1/sandboxes", "")
	w.refused(r, 405, ringfence.CodeMethodNotAllowed, "")
	if r.Header.Get("Allow") != "GET, HEAD, POST" {
		t.Errorf("Allow: %q", r.Header.Get("Allow"))
	}
	r = w.send("GET", "/health", "", "Authorization", "-")
	if r.StatusCode != 200 || string(r.body) != `{"status":"ok","version":"test"}`+"\n" || len(r.Header.Get("X-Request-Id")) != 16 {
		t.Errorf("health: %d %s %v", r.StatusCode, r.body, r.Header)
	}
	if r := w.send("GET", "/v1/openapi.yaml", "", "Authorization", "-"); r.StatusCode != 200 || !strings.HasPrefix(string(r.body), "openapi: 3.1") {
		t.Errorf("openapi: %d %.80s", r.StatusCode, r.body)
	}
}

func TestSandboxThatDiesDuringACommand(t *testing.T) {
	w := newWorld(t)
	for command, word := range map[string]string{"echo before; fake-crash": "crashed", "fake-oom-sandbox": "memory"} {
		id := w.createID()
		e := w.refused(w.run(id, `{"command":"`+command+`"}`), 410, ringfence.CodeSandboxEnded, "")
		if !strings.Contains(fmt.Sprint(e["message"]), word) {
			t.Errorf("%s: %v", command, e["message"])
		}
		if e["hint"] == "" {
			t.Error("no hint")
		}
		w.refused(w.run(id, `{"command":"true"}`), 410, ringfence.CodeSandboxEnded, "")
		if sb := w.send("GET", "/v1/sandboxes/"+id, "").json(t); sb["state"] != "failed" || sb["reason"] == nil || sb["ended_at"] == nil || sb["detail"] == nil {
			t.Errorf("the record: %v", sb)
		}
	}
	// In a stream the status is gone by then.
	id := w.createID()
	r := w.run(id, `{"command":"echo before; fake-crash 0.2"}`, "Accept", "text/event-stream")
	if r.StatusCode != 200 || !strings.Contains(string(r.body), "event: error\ndata: {\"error\":{\"code\":\"sandbox_ended\"") || strings.Contains(string(r.body), "event: exit") {
		t.Errorf("a stream: %d %s", r.StatusCode, r.body)
	}
}

func TestCommandErrors(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	for body, field := range map[string]string{
		`{}`: "command", `{"command":"a","args":["b"]}`: "command", `{"args":[]}`: "command", `{"args":[""]}`: "args",
		`{"command":"true","timeout_seconds":"0"}`: "timeout_seconds", `{"command":"true","timeout_seconds":-2}`: "timeout_seconds",
		`{"command":"true","cwd":"relative"}`: "cwd", `{"command":"pwd","cwd":"/does/not/exist"}`: "cwd", `{"command":"true","user":"nobody-has-this"}`: "user",
		`{"command":"true","user":"; rm"}`: "user", `{"command":"true","output_limit_bytes":0}`: "output_limit_bytes", `{"command":"true","output_limit_bytes":67108865}`: "output_limit_bytes",
		`{"command":"true","stdin":"a","stdin_base64":"YQ=="}`: "stdin_base64", `{"command":"true","stdin_base64":"?"}`: "stdin_base64",
		`{"command":"true","env":{"A":"a\u0000"}}`: "env", `{"command":"tr\u0000ue"}`: "command", `{"command":"true","tag":"a\nb"}`: "tag",
	} {
		w.refused(w.run(id, body), 400, ringfence.CodeInvalidArgument, field)
	}
	r := w.run(id, `{"args":["no-such-program"]}`)
	if r.StatusCode != http.StatusOK || r.json(t)["exit_code"] != 127.0 {
		t.Errorf("a program that does not exist: %d %s", r.StatusCode, r.body)
	}
}
