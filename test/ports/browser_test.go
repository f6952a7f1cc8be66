package ports

import (
	"bytes"
	"encoding/json"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ringfence.dev/ringfence/client"
)

// site is a web site of a sandbox: files of a directory, and a WebSocket that sends back.
const site = `
import asyncio, os, tornado.web, tornado.websocket
os.makedirs("/home/user/site/sub", exist_ok=True)
worker = """
const seen = []
addEventListener("install", () => skipWaiting())
addEventListener("activate", e => e.waitUntil(clients.claim()))
addEventListener("fetch", e => { seen.push(e.request.url) })
addEventListener("message", e => e.ports[0].postMessage(seen))
"""
for name, text in {"index.html": "<title>site</title>", "sw.js": worker, "sub/sw.js": worker, "sub/index.html": "<title>sub</title>"}.items():
    open("/home/user/site/" + name, "w").write(text)
class Echo(tornado.websocket.WebSocketHandler):
    def on_message(self, m): self.write_message(m, binary=isinstance(m, bytes))
class Files(tornado.web.StaticFileHandler):
    def set_extra_headers(self, path):
        self.set_header("Service-Worker-Allowed", "/")
        self.set_header("Content-Security-Policy", "sandbox allow-same-origin allow-scripts")
        self.set_header("Set-Cookie", "site=1; path=/")
        self.set_header("Access-Control-Allow-Origin", "*")
        self.set_header("Cache-Control", "no-store")
async def main():
    tornado.web.Application([("/echo", Echo), ("/(.*)", Files, {"path": "/home/user/site", "default_filename": "index.html"})]).listen(8123, "127.0.0.1")
    await asyncio.Event().wait()
asyncio.run(main())
`

// attacks are what a hostile page tries against the API's origin. Each is a function that
// returns something true where it succeeded.
const attacks = `(async (api, sandbox) => {
  const attacks = {
    cookies: () => { document.cookie = "guest=1"; return document.cookie || "written" },
    localStorage: () => { localStorage.guest = "1"; return localStorage.console || "written" },
    sessionStorage: () => { sessionStorage.guest = "1"; return "written" },
    indexedDB: () => new Promise((done, failed) => { const r = indexedDB.open("guest"); r.onsuccess = () => done("opened"); r.onerror = () => failed(r.error) }),
    caches: () => caches.open("guest").then(() => "opened"),
    "service worker": () => navigator.serviceWorker.register("sw.js").then(() => "registered"),
    "shared worker": () => new Promise((done, failed) => { const w = new SharedWorker("sw.js"); w.onerror = failed; setTimeout(() => done("started"), 2000) }),
    "read the API": () => fetch(api + "/v1/sandboxes", {credentials: "include"}).then(r => r.text()),
    "read what is public": () => fetch(api + "/health", {credentials: "include"}).then(r => r.text()),
    "kill the sandbox": () => fetch(api + "/v1/sandboxes/" + sandbox, {method: "DELETE", credentials: "include"}).then(r => r.text()),
    "run a command": () => fetch(api + "/v1/sandboxes/" + sandbox + "/commands", {method: "POST", credentials: "include", headers: {"Content-Type": "application/json"}, body: '{"command":"id"}'}).then(r => r.text()),
    XMLHttpRequest: () => new Promise((done, failed) => { const x = new XMLHttpRequest(); x.withCredentials = true; x.onload = () => done(x.responseText || "read"); x.onerror = () => failed(new Error("refused")); x.open("GET", api + "/v1/sandboxes"); x.send() }),
    "a session": () => new Promise((done, failed) => { const s = new WebSocket(api.replace("http", "ws") + "/v1/sandboxes/" + sandbox + "/connect", ["ringfence.v1"]); s.onopen = () => done("opened"); s.onerror = () => failed(new Error("refused")) }),
    "the console in a frame": () => new Promise((done, failed) => { const f = document.createElement("iframe"); f.onload = () => { try { done(f.contentWindow.document.body.innerText || "read") } catch (e) { failed(e) } }; f.src = api + "/health"; document.body.append(f) }),
    "the console in a window": async () => { const w = open(api + "/health"); await new Promise(r => setTimeout(r, 1000)); const text = w.document.body.innerText; return text || "read" },
    "a frame without a policy": () => { const f = document.createElement("iframe"); document.body.append(f); return f.contentWindow.localStorage && "reached" },
    origin: () => self.origin === api && "the API's",
  }
  const results = {}
  await Promise.all(Object.entries(attacks).map(async ([name, attack]) => {
    try { results[name] = (await attack()) || "" } catch (e) { results[name] = "" }
  }))
  return results
})`

// testBrowser opens what sandboxes serve in a real browser.
func testBrowser(t *testing.T, w *world, b *browser) {
	w.wait("the site", func() bool {
		p, err := w.sb.Ports().Get(t.Context(), 8123)
		return err == nil && p.Address != ""
	})
	link, _, err := w.sb.Ports().Link(t.Context(), 8123, client.LinkOptions{Path: "/sub/"})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	own := u.Scheme + "://" + u.Host

	run := func(p *page) map[string]string {
		got := map[string]string{}
		p.eval(attacks+"("+quote(w.url)+","+quote(w.sb.ID())+")", &got)
		if len(got) < 15 {
			t.Fatalf("the attacks were not made: %v", got)
		}
		return got
	}
	t.Run("a hostile page on the API's origin", func(t *testing.T) {
		p := b.page(t)
		// What a console would have there.
		p.open(w.url + "/health")
		p.eval(`localStorage.console = "secret"; document.cookie = "console=secret"`, nil)
		p.open(w.at(8123, "/") + "?" + u.RawQuery)
		var at string
		p.eval("document.title + location.href", &at)
		if at != "site"+w.at(8123, "/") {
			t.Fatalf("the page is %s", at)
		}
		for name, got := range run(p) {
			if got != "" {
				t.Errorf("%s: %q", name, got)
			}
		}
		p.open(w.url + "/health")
		var left string
		p.eval("localStorage.console + document.cookie + Object.keys(localStorage)", &left)
		if left != "secretconsole=secretconsole" {
			t.Errorf("the console has %q", left)
		}
	})
	t.Run("and on its own", func(t *testing.T) {
		p := b.page(t)
		p.open(own + "/") // not public, and there is no link yet
		var text string
		if p.eval("document.body.innerText", &text); !strings.Contains(text, "unauthenticated") {
			t.Errorf("without the link: %.200s", text)
		}
		p.open(link)
		p.eval("document.title + location.href + document.cookie + document.referrer + JSON.stringify(performance.getEntries()) + history.length", &text)
		if !strings.HasPrefix(text, "sub"+own+"/sub/site=1") || strings.Contains(text, "rf_") {
			t.Errorf("the page sees %s", text)
		}
		for name, got := range run(p) { // what is its own it may have, and nothing of the API's
			mine := map[string]string{
				"localStorage": "written", "sessionStorage": "written", "indexedDB": "opened", "caches": "opened",
				"service worker": "registered", "shared worker": "started", "a frame without a policy": "reached",
			}
			if name == "cookies" && strings.Contains(got, "site=1") && strings.Contains(got, "guest=1") && !strings.Contains(got, "rf_") {
				continue
			}
			if want := mine[name]; got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		// A worker of a directory works; none gets the whole host, and none sees a link.
		p.eval(`(async () => {
			const tried = []
			for (const [script, scope] of [["/sw.js", "/"], ["/sub/sw.js", "/"], ["/.ringfence/sub/sw.js", "/.ringfence/sub/"]])
				await navigator.serviceWorker.register(script, {scope}).then(() => tried.push(script + " for " + scope), () => {})
			await navigator.serviceWorker.register("/sub/sw.js"); await navigator.serviceWorker.ready
			return tried.join()
		})()`, &text)
		if text != "" {
			t.Errorf("workers for all of the host: %s", text)
		}
		p.open(link)
		p.wait("navigator.serviceWorker.controller")
		p.open(own + "/sub/")
		p.eval(`new Promise(done => { const c = new MessageChannel(); c.port1.onmessage = e => done(e.data.join("\n")); navigator.serviceWorker.controller.postMessage("", [c.port2]) })`, &text)
		if !strings.Contains(text, own+"/sub/") || strings.Contains(text, "rf_") {
			t.Errorf("the worker saw %q", text)
		}
		p.eval(`new Promise((done, failed) => {
			const s = new WebSocket(location.origin.replace("http", "ws") + "/echo"); s.binaryType = "arraybuffer"
			s.onopen = () => { s.send("text ✓"); s.send(new Uint8Array(100000).fill(7)) }
			let text; s.onmessage = e => { if (typeof e.data === "string") text = e.data; else done(text + " " + e.data.byteLength) }
			s.onerror = () => failed(new Error("it broke"))
		})`, &text)
		if text != "text ✓ 100000" {
			t.Errorf("the WebSocket sent back %q", text)
		}
	})
	t.Run("signed URLs", func(t *testing.T) { signedURLs(t, w, b, own) })
}

// signedURLs downloads and uploads a file as a person does.
func signedURLs(t *testing.T, w *world, b *browser, elsewhere string) {
	const path = "/home/user/page.html"
	content := "<script>document.title = 'it ran'</script>"
	if _, err := w.sb.Files().Write(t.Context(), path, strings.NewReader(content), client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	down, err := w.sb.Files().DownloadURL(t.Context(), path, 0)
	if err != nil {
		t.Fatal(err)
	}
	up, err := w.sb.Files().UploadURL(t.Context(), path, 0)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := b.page(t)
	b.call("", "Browser.setDownloadBehavior", map[string]any{"behavior": "allow", "downloadPath": dir, "browserContextId": p.context, "eventsEnabled": true}, nil)
	if why := p.open(down.URL); why != "net::ERR_ABORTED" {
		t.Errorf("opening it says %q, and not that it is a download", why)
	}
	b.event("Browser.downloadProgress", func(params json.RawMessage) bool {
		var is struct{ State string }
		return json.Unmarshal(params, &is) == nil && is.State == "completed"
	})
	if got, err := os.ReadFile(filepath.Join(dir, "page.html")); err != nil || string(got) != content {
		t.Errorf("the download is %q, %v", got, err)
	}
	var text string
	if p.eval("document.title + location.href", &text); text != "about:blank" {
		t.Errorf("the page is %s", text)
	}

	// A form of any page, with a file that somebody chose.
	p.open(elsewhere + "/nothing")
	p.eval(`(async url => {
		const answer = await fetch(url, {method: "PUT", body: "by a script"}).then(r => r.text(), () => "refused")
		if (answer !== "refused") return answer
		document.body.innerHTML = '<form method="post" enctype="multipart/form-data"><input type="file" name="file"></form>'
		const form = document.forms[0], files = new DataTransfer()
		files.items.add(new File([new Uint8Array(300000).map((_, i) => i)], "x.bin"))
		form[0].files = files.files; form.action = url; setTimeout(() => form.submit())
		return ""
	})(`+quote(up.URL)+")", &text)
	if text != "" {
		t.Errorf("a script of another origin may upload: %s", text)
	}
	p.wait("document.body && document.body.innerText.includes('300000')")
	body, err := w.sb.Files().Read(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	want := make([]byte, 300000)
	for i := range want {
		want[i] = byte(i)
	}
	if got, err := io.ReadAll(body); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes were uploaded, %v", len(got), err)
	}
}

// testLab opens JupyterLab as a person does, and runs a cell.
func testLab(t *testing.T, w *world, b *browser) {
	w.wait("JupyterLab", func() bool { return w.status(w.at(8888, "/api")) == 200 })
	link, _, err := w.sb.Ports().Link(t.Context(), 8888, client.LinkOptions{Path: "/lab"})
	if err != nil {
		t.Fatal(err)
	}
	p := b.page(t)
	p.call(p.session, "Emulation.setDeviceMetricsOverride", map[string]any{"width": 1200, "height": 800, "deviceScaleFactor": 1, "mobile": false}, nil)
	p.open(link)
	p.wait(`!document.querySelector("#jupyterlab-splash") && document.querySelector(".jp-LauncherCard[data-category=Notebook]")`)
	p.eval(`document.querySelector(".jp-LauncherCard[data-category=Notebook]").click()`, nil)
	p.wait(`document.querySelector(".jp-Notebook .cm-content")`)
	// A cell is typed and run as often as it takes: JupyterLab moves the focus when it likes.
	const output = `[...document.querySelectorAll(".jp-OutputArea-output")].some(e => e.innerText.includes("42 by hand"))`
	for range 30 {
		var done bool
		if p.eval(output, &done); done {
			break
		}
		p.eval(`[...document.querySelectorAll(".jp-Notebook .cm-content")].at(-1).focus()`, nil)
		p.call(p.session, "Input.insertText", map[string]any{"text": "print(6 * 7, 'by hand')\n"}, nil)
		for _, typ := range []string{"keyDown", "keyUp"} {
			p.call(p.session, "Input.dispatchKeyEvent", map[string]any{"type": typ, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "modifiers": 8}, nil)
		}
		p.eval(`new Promise(done => { const end = Date.now() + 3000, look = () => `+output+` || Date.now() > end ? done() : setTimeout(look, 50); look() })`, nil)
	}
	p.wait(output)
	if png := p.screenshot("jupyterlab"); len(png) < 10_000 {
		t.Errorf("the screenshot has %d bytes", len(png))
	}
}
