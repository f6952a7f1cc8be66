package faults

import (
	"context"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

// Whether a port is public is kept across daemons, and so is that it is public no more.
func TestPublicPortsAcrossDaemons(t *testing.T) {
	w := newWorld(t)
	w.start()
	sb := w.create(client.CreateOptions{})
	const server = `use Socket; socket(S, PF_INET, SOCK_STREAM, 0); setsockopt(S, SOL_SOCKET, SO_REUSEADDR, 1); bind(S, sockaddr_in(8000, INADDR_LOOPBACK)) && listen(S, 9) or die;
		while (accept(C, S)) { sysread(C, $x, 4096); syswrite(C, "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello"); close C }`
	if _, err := sb.StartProcess(t.Context(), client.ProcessOptions{Args: []string{"perl", "-e", server}}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the server in the sandbox", func() bool {
		p, err := sb.Ports().Get(t.Context(), 8000)
		return err == nil && p.Address != ""
	})
	anybody := func(when string, want int) {
		t.Helper()
		resp, err := http.Get("http://" + w.listen + "/v1/sandboxes/" + sb.ID() + "/ports/8000/")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", when, resp.StatusCode, want)
		}
	}
	anybody("a private port", http.StatusUnauthorized)
	if _, err := sb.Ports().Publish(t.Context(), 8000); err != nil {
		t.Fatal(err)
	}
	anybody("a public port", http.StatusOK)
	w.stop(syscall.SIGKILL)
	w.start()
	anybody("a public port after the daemon was killed", http.StatusOK)
	if list, err := sb.Ports().List(t.Context()); err != nil || len(list) != 1 || !list[0].Public {
		t.Errorf("the list says %+v %v", list, err)
	}
	if _, err := sb.Ports().Unpublish(t.Context(), 8000); err != nil {
		t.Fatal(err)
	}
	w.stop(syscall.SIGTERM)
	w.start()
	anybody("a port that is public no more", http.StatusUnauthorized)
}

// The route that resizes a terminal answers as the contract says, and the terminal has the size.
func TestResizeRoute(t *testing.T) {
	w := newWorld(t)
	w.start()
	sb := w.create(client.CreateOptions{})
	p, err := sb.StartProcess(t.Context(), client.ProcessOptions{
		Args: []string{"sh", "-c", "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done"}, Terminal: &client.TerminalSize{Cols: 80, Rows: 24},
	})
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	var out lines
	out.ready = ready
	followed := make(chan error, 1)
	go func() {
		_, err := p.Follow(context.Background(), client.FollowOptions{Stdout: &out})
		followed <- err
	}()
	<-ready
	at := "/v1/sandboxes/" + sb.ID() + "/processes/" + p.ID() + "/resize"
	status, header, body := w.request("POST", at, `{"cols":132,"rows":50}`, "Content-Type", "application/json")
	if status != http.StatusNoContent || body != "" || header.Get("Content-Type") != "" {
		t.Errorf("the answer is %d %v %q", status, header, body)
	}
	if err := <-followed; err != nil || !strings.Contains(out.text, "50 132") {
		t.Errorf("the terminal says %q, %v", out.text, err)
	}
	if status, _, body := w.request("POST", at, `{"cols":132,"rows":50}`, "Content-Type", "application/json"); status != http.StatusConflict || !strings.Contains(body, string(ringfence.CodeProcessEnded)) {
		t.Errorf("after the end: %d %s", status, body)
	}
}

// lines is output of which the first piece is told.
type lines struct {
	text  string
	ready chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	if l.text += string(p); strings.Contains(l.text, "ready") && l.ready != nil {
		close(l.ready)
		l.ready = nil
	}
	return len(p), nil
}
