package ports

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ringfence.dev/ringfence/internal/testenv"
)

// patience is how long a browser may take for anything.
const patience = 90 * time.Second

// browser is a Chromium that the test drives by its DevTools protocol, one call at a time.
type browser struct {
	t      *testing.T // that uses it now
	conn   *websocket.Conn
	calls  int
	events []message // that came and were not asked for yet
}

type message struct {
	ID      int                       `json:"id,omitempty"`
	Session string                    `json:"sessionId,omitempty"`
	Method  string                    `json:"method,omitempty"`
	Params  json.RawMessage           `json:"params,omitempty"`
	Result  json.RawMessage           `json:"result,omitempty"`
	Error   *struct{ Message string } `json:"error,omitempty"`
}

// newBrowser starts a Chromium, which ends with the test.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	program := testenv.RequireTool(t, "chromium", "chromium")
	dir := t.TempDir()
	cmd := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--no-proxy-server",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
		"--remote-debugging-port=0", "--user-data-dir="+dir, "about:blank")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var log strings.Builder
	cmd.Stderr = &log
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
		// The others write into the directory until they are gone.
		for end := time.Now().Add(patience); syscall.Kill(-cmd.Process.Pid, 0) == nil && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		if t.Failed() {
			t.Logf("chromium: %.2000s", log.String())
		}
	})
	var where []string
	for end := time.Now().Add(patience); len(where) != 2; time.Sleep(20 * time.Millisecond) {
		text, err := os.ReadFile(filepath.Join(dir, "DevToolsActivePort"))
		if where = strings.Split(string(text), "\n"); err != nil && time.Now().After(end) {
			t.Fatalf("chromium does not start: %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws://127.0.0.1:"+where[0]+where[1], nil) //nolint:bodyclose // Dial has read it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	conn.SetReadLimit(64 << 20)
	return &browser{t: t, conn: conn}
}

func (b *browser) read() message {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	_, raw, err := b.conn.Read(ctx)
	var m message
	if err == nil {
		err = json.Unmarshal(raw, &m)
	}
	if err != nil {
		b.t.Fatalf("the browser: %v", err)
	}
	return m
}

// call asks the browser for something, of a page unless session is empty.
func (b *browser) call(session, method string, params, result any) {
	b.t.Helper()
	b.calls++
	raw, err := json.Marshal(params)
	if err != nil {
		b.t.Fatal(err)
	}
	raw, _ = json.Marshal(message{ID: b.calls, Session: session, Method: method, Params: raw})
	if err := b.conn.Write(b.t.Context(), websocket.MessageText, raw); err != nil {
		b.t.Fatal(err)
	}
	for {
		m := b.read()
		switch {
		case m.ID == 0:
			b.events = append(b.events, m)
			continue
		case m.ID != b.calls:
			continue
		case m.Error != nil:
			b.t.Fatalf("%s: %s", method, m.Error.Message)
		}
		if result != nil {
			if err := json.Unmarshal(m.Result, result); err != nil {
				b.t.Fatal(err)
			}
		}
		return
	}
}

// event waits for an event that a test is satisfied with.
func (b *browser) event(method string, is func(params json.RawMessage) bool) {
	b.t.Helper()
	for {
		for i, m := range b.events {
			if m.Method == method && is(m.Params) {
				b.events = b.events[i+1:]
				return
			}
		}
		b.events = []message{b.read()}
	}
}

// page is a page in a browser of its own: no cookie and no storage of another's.
type page struct {
	*browser
	context, session string
}

func (b *browser) page(t *testing.T) *page {
	t.Helper()
	b.t = t // of the subtest
	var made struct{ BrowserContextID, TargetID, SessionID string }
	b.call("", "Target.createBrowserContext", map[string]any{}, &made)
	b.call("", "Target.createTarget", map[string]any{"url": "about:blank", "browserContextId": made.BrowserContextID}, &made)
	b.call("", "Target.attachToTarget", map[string]any{"targetId": made.TargetID, "flatten": true}, &made)
	b.call(made.SessionID, "Page.enable", map[string]any{}, nil)
	return &page{b, made.BrowserContextID, made.SessionID}
}

// open opens an address, and returns when the page is loaded, or why it is not.
func (p *page) open(url string) string {
	p.t.Helper()
	var got struct{ ErrorText string }
	p.events = nil
	p.call(p.session, "Page.navigate", map[string]any{"url": url}, &got)
	if got.ErrorText == "" {
		p.event("Page.loadEventFired", func(json.RawMessage) bool { return true })
	}
	return got.ErrorText
}

// eval evaluates an expression in the page, waits for it if it is a promise, and decodes
// its value.
func (p *page) eval(expression string, value any) {
	p.t.Helper()
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	p.call(p.session, "Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true}, &got)
	if e := got.ExceptionDetails; e != nil {
		p.t.Fatalf("%.200s: %s %s", expression, e.Text, e.Exception.Description)
	}
	if value != nil {
		if err := json.Unmarshal(got.Result.Value, value); err != nil {
			p.t.Fatalf("%.200s: %v", expression, err)
		}
	}
}

// wait waits until an expression is true.
func (p *page) wait(expression string) {
	p.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		var is bool
		if p.eval("!!("+expression+")", &is); is {
			return
		}
		if time.Now().After(end) {
			var text string
			p.eval("location.href + '\\n' + document.documentElement.outerHTML.slice(0, 2000)", &text)
			p.t.Fatalf("waited in vain for %s in %s", expression, text)
		}
	}
}

// screenshot returns the page as a PNG, which RINGFENCE_TEST_SCREENSHOTS keeps in a directory.
func (p *page) screenshot(name string) []byte {
	p.t.Helper()
	var got struct{ Data string }
	p.call(p.session, "Page.captureScreenshot", map[string]any{"format": "png"}, &got)
	png, err := base64.StdEncoding.DecodeString(got.Data)
	if dir := os.Getenv("RINGFENCE_TEST_SCREENSHOTS"); err == nil && dir != "" {
		err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return png
}

// quote spells a text as JavaScript.
func quote(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprint(err))
	}
	return string(raw)
}
