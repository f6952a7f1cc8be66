package api_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"ringfence.dev/ringfence"
	spec "ringfence.dev/ringfence/api"
	"ringfence.dev/ringfence/internal/api"
)

type object = map[string]any

// document is the contract, as JSON has it.
func document(t *testing.T) object {
	t.Helper()
	var tree any
	if err := yaml.Unmarshal(spec.OpenAPI, &tree); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	var doc object
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// resolve follows references.
func resolve(doc object, v any) object {
	o, _ := v.(object)
	ref, ok := o["$ref"].(string)
	if !ok {
		return o
	}
	var at any = doc
	for part := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		at = at.(object)[part]
	}
	return resolve(doc, at)
}

// operations returns each operation by "METHOD /path", with the parameters of its
// path among its own.
func operations(t *testing.T, doc object) map[string]object {
	t.Helper()
	all := map[string]object{}
	for path, v := range doc["paths"].(object) {
		item := v.(object)
		shared, _ := item["parameters"].([]any)
		for method, op := range item {
			if method == "parameters" {
				continue
			}
			o := op.(object)
			own, _ := o["parameters"].([]any)
			o["parameters"] = slices.Concat(shared, own)
			all[strings.ToUpper(method)+" "+path] = o
		}
	}
	return all
}

// The contract and the route table say the same: paths, access and query parameters.
func TestContractAndRoutes(t *testing.T) {
	doc := document(t)
	ops := operations(t, doc)
	for _, rt := range api.Routes {
		if rt.Method == "*" { // the contract has no such thing
			rt.Method = "GET"
		}
		name := rt.Method + " " + strings.ReplaceAll(rt.Pattern, "...}", "}")
		op, ok := ops[name]
		if !ok {
			t.Errorf("%s is served and not described", name)
			continue
		}
		delete(ops, name)
		var access api.Access
		switch security, own := op["security"].([]any); {
		case !own:
			access = api.ControlPlane
		case len(security) == 0:
			access = api.Open
		case slices.ContainsFunc(security, func(v any) bool { return v.(object)["portLink"] != nil }):
			access = api.PortPlane
		default:
			access = api.DataPlane
		}
		if access != rt.Access {
			t.Errorf("%s is described as %s and served as %s", name, access, rt.Access)
		}
		var query []string
		for _, p := range op["parameters"].([]any) {
			if param := resolve(doc, p); param["in"] == "query" {
				query = append(query, strings.Replace(param["name"].(string), ".KEY", ".", 1))
			}
		}
		if want := slices.Sorted(slices.Values(rt.Query)); !slices.Equal(slices.Sorted(slices.Values(query)), want) {
			t.Errorf("%s is described with the query parameters %v and takes %v", name, query, want)
		}
		if _, ok := op["responses"].(object)["default"]; !ok {
			t.Errorf("%s does not say what its errors look like", name)
		}
	}
	delete(ops, "HEAD /v1/sandboxes/{id}/files") // net/http serves HEAD where it serves GET
	for name := range ops {
		t.Errorf("%s is described and not served", name)
	}
}

func TestContractAndErrors(t *testing.T) {
	doc := document(t)
	var described []string
	schema := resolve(doc, object{"$ref": "#/components/schemas/Error"})
	for _, code := range schema["properties"].(object)["error"].(object)["properties"].(object)["code"].(object)["enum"].([]any) {
		described = append(described, code.(string))
	}
	var codes []string
	for _, row := range ringfence.ErrorTable {
		codes = append(codes, string(row.Code))
	}
	if !slices.Equal(slices.Sorted(slices.Values(described)), slices.Sorted(slices.Values(codes))) {
		t.Errorf("the contract has the codes %v, the error table %v", described, codes)
	}
}

// compiler compiles schemas out of the document.
func compiler(t *testing.T, doc object) func(pointer string) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	if err := c.AddResource("mem:///openapi.json", doc); err != nil {
		t.Fatal(err)
	}
	return func(pointer string) *jsonschema.Schema {
		schema, err := c.Compile("mem:///openapi.json#" + pointer)
		if err != nil {
			t.Fatal(err)
		}
		return schema
	}
}

func pointer(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(p))
	}
	return b.String()
}

// contentOf returns where the schema of an answer is.
func contentOf(doc object, path, method, status string) (where string, content object) {
	responses := doc["paths"].(object)[path].(object)[strings.ToLower(method)].(object)["responses"].(object)
	if _, ok := responses[status]; !ok {
		status = "default"
	}
	response := responses[status].(object)
	where = pointer("paths", path, strings.ToLower(method), "responses", status)
	if ref, ok := response["$ref"].(string); ok {
		where = strings.TrimPrefix(ref, "#")
	}
	content, _ = resolve(doc, response)["content"].(object)
	return where, content
}

func TestExamples(t *testing.T) {
	doc := document(t)
	compile := compiler(t, doc)
	checked := 0
	var walk func(at string, v any)
	walk = func(at string, v any) {
		switch v := v.(type) {
		case object:
			examples := []any{}
			if e, ok := v["example"]; ok {
				examples = append(examples, e)
			}
			if all, ok := v["examples"].(object); ok {
				for _, e := range all {
					examples = append(examples, e.(object)["value"])
				}
			}
			if _, ok := v["schema"]; ok && !strings.HasSuffix(at, "event-stream") {
				for _, e := range examples {
					checked++
					if err := compile(at + "/schema").Validate(e); err != nil {
						t.Errorf("the example at %s: %v", at, err)
					}
				}
			}
			for key, inner := range v {
				if key != "example" && key != "examples" {
					walk(at+pointer(key), inner)
				}
			}
		case []any:
			for i, inner := range v {
				walk(fmt.Sprintf("%s/%d", at, i), inner)
			}
		}
	}
	walk("/paths", doc["paths"])
	walk("/components", doc["components"])
	if checked < 25 {
		t.Errorf("only %d examples were found", checked)
	}
}

// What the server really answers is what the contract says.
func TestAnswersFitTheContract(t *testing.T) {
	w := newWorld(t)
	doc := document(t)
	compile := compiler(t, doc)
	described := operations(t, document(t))
	answered := map[string]bool{}
	check := func(method, path, at, body string, want int, headers ...string) reply {
		t.Helper()
		r := w.send(method, at, body, headers...)
		if r.StatusCode != want {
			t.Errorf("%s %s: %d %s, want %d", method, at, r.StatusCode, r.body, want)
			return r
		}
		if want < 300 {
			answered[method+" "+path] = true
		}
		where, content := contentOf(doc, path, method, fmt.Sprint(r.StatusCode))
		kind := r.Header.Get("Content-Type")
		if len(content) == 0 || method == "HEAD" {
			if len(r.body) > 0 {
				t.Errorf("%s %s has a body that is not described: %s", method, at, r.body)
			}
			return r
		}
		if _, ok := content[kind]; !ok {
			t.Errorf("%s %s answers with %s, which is not described", method, at, kind)
			return r
		}
		if kind != "application/json" {
			return r
		}
		answer, err := jsonschema.UnmarshalJSON(strings.NewReader(string(r.body)))
		if err != nil {
			t.Fatal(err)
		}
		if err := compile(where + pointer("content", kind, "schema")).Validate(answer); err != nil {
			t.Errorf("%s %s: %v\n%s", method, at, err, r.body)
		}
		return r
	}
	const sandboxes, one = "/v1/sandboxes", "/v1/sandboxes/{id}"
	check("GET", "/health", "/health", "", 200)
	check("GET", "/v1/openapi.yaml", "/v1/openapi.yaml", "", 200)
	sb := check("POST", sandboxes, sandboxes, `{"name":"n","env":{"A":"b"},"metadata":{"k":"v"},"user":"root","timeout_seconds":3600.5,"network":{"deny_out":["0.0.0.0/0"]}}`, 201).json(t)
	id := sb["id"].(string)
	at := func(suffix string) string { return sandboxes + "/" + id + suffix }
	check("POST", sandboxes, sandboxes, "", 201)
	check("POST", sandboxes, sandboxes, `{"vcpu":99}`, 400)
	check("POST", sandboxes, sandboxes, `{"template":"x"}`, 404)
	check("GET", sandboxes, sandboxes+"?metadata.k=v&limit=1", "", 200)
	check("GET", sandboxes, sandboxes+"?limit=1", "", 200)
	check("GET", one, at(""), "", 200)
	check("GET", one, sandboxes+"/none", "", 404)
	check("GET", one, at(""), "", 401, "Authorization", "-")
	check("GET", one, at(""), "", 403, "Authorization", "Bearer "+sb["access_token"].(string))
	check("GET", "/v1/templates", "/v1/templates", "", 200)
	check("GET", "/v1/templates/{name}", "/v1/templates/base", "", 200)
	check("GET", "/v1/templates/{name}", "/v1/templates/none", "", 404)
	key := check("POST", "/v1/keys", "/v1/keys", `{"name":"k"}`, 201).json(t)
	check("GET", "/v1/keys", "/v1/keys", "", 200)
	check("DELETE", "/v1/keys/{key}", "/v1/keys/"+key["id"].(string), "", 204)
	check("DELETE", "/v1/keys/{key}", "/v1/keys/none", "", 404)

	commands := one + "/commands"
	check("POST", commands, at("/commands"), `{"command":"echo out; echo err >&2; exit 3"}`, 200)
	check("POST", commands, at("/commands"), `{"command":"sleep 60","timeout_seconds":0.1}`, 200)
	check("POST", commands, at("/commands"), `{"command":"fake-bytes 100; fake-bytes 100 >&2","output_limit_bytes":50}`, 200)
	check("POST", commands, at("/commands"), `{"command":"true"}`, 200, "Accept", "text/event-stream")
	check("POST", commands, at("/commands"), `{"command":"true"}`, 200, "Accept", "application/vnd.ringfence.stream")
	check("POST", commands, at("/commands"), `{"command":"true","cwd":"/none"}`, 400)
	check("POST", commands, at("/commands"), `{"command":"`+strings.Repeat("x", 1<<20)+`"}`, 413)

	processes, process := one+"/processes", one+"/processes/{process}"
	check("POST", processes, at("/processes"), `{"command":"cat; exit 3","stdin":true,"tag":"t","timeout_seconds":60}`, 201)
	check("POST", processes, at("/processes"), `{"command":"true","cwd":"/none"}`, 400)
	check("GET", process, at("/processes/tag:t"), "", 200)
	check("GET", process, at("/processes/none"), "", 404)
	check("GET", process+"/wait", at("/processes/tag:t/wait?timeout_seconds=0"), "", 200)
	check("GET", process+"/output", at("/processes/tag:t/output"), "", 200)
	check("POST", process+"/stdin", at("/processes/tag:t/stdin?close=true"), "text\xff", 200)
	check("GET", process+"/wait", at("/processes/tag:t/wait"), "", 200)
	check("GET", process+"/output", at("/processes/tag:t/output"), "", 200)
	check("GET", process+"/output", at("/processes/tag:t/output"), "", 200, "Accept", "text/event-stream")
	check("GET", process+"/output", at("/processes/tag:t/output?from=2"), "", 200, "Accept", "application/vnd.ringfence.stream")
	check("POST", process+"/signal", at("/processes/tag:t/signal"), `{"signal":"TERM"}`, 409)
	check("POST", processes, at("/processes"), `{"args":["sleep","60"],"tag":"s","log_bytes":65536}`, 201)
	check("POST", process+"/stdin", at("/processes/tag:s/stdin"), "x", 409)
	check("POST", process+"/resize", at("/processes/tag:s/resize"), `{"cols":80,"rows":24}`, 409)
	check("GET", processes, at("/processes"), "", 200)
	check("POST", process+"/signal", at("/processes/tag:s/signal"), `{"signal":9,"tree":true}`, 204)
	check("GET", one+"/connect", at("/connect"), "", 400)
	check("GET", one+"/connect", at("/connect"), "", 403, "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13",
		"Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Protocol", "ringfence.v1", "Origin", "null")
	w.connect(id, `{"attach":{"process":"tag:t"}}`).until("exit")
	answered["GET "+one+"/connect"] = true

	ports := one + "/ports"
	check("GET", ports, at("/ports"), "", 200)
	check("PUT", ports+"/{port}", at("/ports/8000"), `{"public":true}`, 200)
	check("GET", ports+"/{port}", at("/ports/8000"), "", 200)
	check("GET", ports, at("/ports"), "", 200)
	check("GET", ports+"/{port}", at("/ports/x"), "", 400)
	check("GET", ports+"/{port}/{rest}", at("/ports/8000/x"), "", 502)
	check("POST", one+"/links", at("/links"), `{"port":8000,"path":"/x?y"}`, 201)
	check("GET", one+"/tcp/{port}", at("/tcp/8000"), "", 502)
	check("GET", one+"/metrics", at("/metrics?from=2026-01-01T00:00:00Z&to=2046-01-01T00:00:00.5%2B01:00"), "", 200)
	check("GET", one+"/metrics", at("/metrics?from=yesterday"), "", 400)
	check("GET", one+"/events", at("/events?limit=2"), "", 200)
	check("GET", "/v1/events", "/v1/events?after=now", "", 200)
	check("GET", "/v1/events", "/v1/events?after=x", "", 400)
	check("GET", "/v1/events", "/v1/events?limit=501", "", 400)

	files := one + "/files"
	check("PUT", files, at("/files?path=/d/f&mode=0600"), "0123", 200)
	check("GET", files, at("/files?path=/d/f"), "", 200)
	check("HEAD", files, at("/files?path=/d/f"), "", 200)
	check("GET", files, at("/files?path=/d/f"), "", 206, "Range", "bytes=1-2")
	check("GET", files, at("/files?path=/d/f"), "", 416, "Range", "bytes=9-")
	check("GET", files, at("/files?path=/d"), "", 409)
	check("GET", files, at("/files?path=/none"), "", 404)
	check("GET", files+"/stat", at("/files/stat?path=/d/f"), "", 200)
	check("GET", files+"/list", at("/files/list?path=/&depth=3"), "", 200)
	check("POST", files+"/mkdir", at("/files/mkdir"), `{"path":"/e"}`, 200)
	check("POST", files+"/rename", at("/files/rename"), `{"from":"/d/f","to":"/e/f"}`, 200)
	check("PUT", files, at("/files?path_base64=L2Uv/w=="), "x", 200)
	check("GET", files+"/list", at("/files/list?path=/e"), "", 200)
	check("GET", files+"/list", at("/files/list?path=/e&limit=1"), "", 200)
	check("PUT", files, at("/files?path=/e/f"), "x", 412, "If-None-Match", "*")
	check("POST", files+"/copy", at("/files/copy"), `{"from":"/e/f","to":"/e/g"}`, 200)
	check("POST", files+"/mode", at("/files/mode"), `{"path":"/e/g","mode":"0600","owner":"user"}`, 200)
	check("POST", files+"/metadata", at("/files/metadata"), `{"path":"/e/g","set":{"k":"v"}}`, 200)
	check("GET", files+"/stat", at("/files/stat?path=/e/g"), "", 200)
	check("GET", files+"/search", at("/files/search?path=/e&name=f"), "", 200)
	check("GET", files+"/search", at("/files/search?path=/e&content=1"), "", 200)
	check("GET", files+"/checksum", at("/files/checksum?path=/e/f"), "", 200)
	tar := check("GET", files+"/archive", at("/files/archive?path=/e"), "", 200)
	check("PUT", files+"/archive", at("/files/archive?path=/x"), string(tar.body), 200)
	check("PUT", files+"/archive", at("/files/archive?path=/x&format=zip"), "no zip", 400)
	signed := check("POST", files+"/sign", at("/files/sign"), `{"path":"/e/f","operation":"write"}`, 200).json(t)["url"].(string)
	check("POST", files, strings.TrimPrefix(signed, w.url), "--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\n1\r\n--b--\r\n", 200,
		"Authorization", "-", "Content-Type", "multipart/form-data; boundary=b")
	w.watch(id, "/e", func() {
		check("DELETE", files, at("/files?path=/e&recursive=true"), "", 204)
	})
	answered["GET "+files+"/watch"] = true
	check("PUT", one+"/network", at("/network"), `{"deny_out":["0.0.0.0/0"]}`, 200)
	check("GET", one+"/network", at("/network"), "", 200)
	check("GET", one+"/network/log", at("/network/log?verdict=denied&limit=5"), "", 200)
	check("PATCH", one, at(""), `{"idle_timeout_seconds":300,"on_timeout":"pause","auto_delete_seconds":0.5,"timeout_seconds":null}`, 200)
	check("PATCH", one, at(""), `{"auto_delete_seconds":null,"auto_resume":false,"metadata":{"a":"b"}}`, 200)
	check("POST", one+"/token", at("/token"), "", 200)
	check("POST", one+"/pause", at("/pause"), "", 200)
	check("POST", commands, at("/commands"), `{"command":"true"}`, 409)
	check("POST", one+"/pause", at("/pause"), `{"memory":true}`, 200)
	check("POST", one+"/pause", at("/pause"), `{"memory":false}`, 400)
	snap := check("POST", one+"/snapshots", at("/snapshots"), `{"name":"s"}`, 201).json(t)["id"].(string)
	check("POST", one+"/resume", at("/resume"), "", 200)
	check("POST", one+"/restore", at("/restore"), `{"snapshot":"`+snap+`"}`, 200)
	check("POST", one+"/restore", at("/restore"), `{"snapshot":"snap_none"}`, 404)
	check("POST", one+"/fork", at("/fork"), `{"count":2}`, 201)
	check("POST", one+"/fork", at("/fork"), `{"count":0}`, 400)
	check("POST", sandboxes, sandboxes, `{"snapshot":"`+snap+`","vcpu":1}`, 400)
	check("POST", sandboxes, sandboxes, `{"snapshot":"`+snap+`"}`, 201)
	check("GET", "/v1/snapshots", "/v1/snapshots?sandbox_id="+id, "", 200)
	check("GET", "/v1/snapshots/{snapshot}", "/v1/snapshots/"+snap, "", 200)
	check("DELETE", "/v1/snapshots/{snapshot}", "/v1/snapshots/"+snap, "", 204)
	check("GET", "/v1/snapshots/{snapshot}", "/v1/snapshots/"+snap, "", 404)
	check("DELETE", one, at(""), "", 204)
	check("GET", one, at(""), "", 200)
	check("POST", one+"/pause", at("/pause"), "", 410)
	check("POST", commands, at("/commands"), `{"command":"true"}`, 410)
	w.host.set(1)
	check("POST", sandboxes, sandboxes, "", 429)
	for name := range described {
		if strings.HasSuffix(name, "/resize") {
			continue // it needs a terminal, and the fake has none
		}
		if strings.HasSuffix(name, "/ports/{port}/{rest}") || strings.HasSuffix(name, "/tcp/{port}") {
			continue // port_test.go and test/ports: what comes is the guest's
		}
		if !answered[name] {
			t.Errorf("%s was never seen to succeed", name)
		}
	}
	if len(described) < 20 {
		t.Errorf("only %d operations", len(described))
	}
}
