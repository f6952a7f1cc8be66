package guest_test

import (
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

func TestCommand(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		t.Run("OutputAndExit", func(t *testing.T) {
			r := b.sh(t, `printf out; printf err >&2; exit 3`)
			if r.stdout != "out" || r.stderr != "err" || r.exit.ExitCode != 3 || r.exit.Position != 6 {
				t.Errorf("got %+v", r)
			}
			if r.pid <= 0 {
				t.Errorf("got pid %d", r.pid)
			}
		})
		t.Run("Args", func(t *testing.T) {
			r := b.run(t, guestproto.ProcessStart{Args: []string{"printf", "[%s]", "a b", "", "$HOME", "\n"}})
			if r.stdout != "[a b][][$HOME][\n]" || r.exit.ExitCode != 0 {
				t.Errorf("got %+v", r)
			}
		})
		t.Run("Signal", func(t *testing.T) {
			r := b.sh(t, `kill -TERM $$; sleep 5`)
			if r.exit.ExitCode != 143 || r.exit.Signal != 15 || r.exit.Reason != "" {
				t.Errorf("got %+v", r.exit)
			}
		})
		t.Run("LeftBehind", func(t *testing.T) {
			r := b.run(t, guestproto.ProcessStart{ID: "left", Args: []string{"sh", "-c", "sleep 600 & echo done"}})
			if r.stdout != "done\n" || r.exit.ExitCode != 0 || r.took > 3*time.Second {
				t.Errorf("got %+v", r)
			}
			if err := b.conn.Kill(testContext(t), guestproto.ProcessKill{ID: "left", Signal: 9, Tree: true}); err != nil {
				t.Error(err)
			}
		})
		t.Run("Env", func(t *testing.T) {
			r := b.run(t, guestproto.ProcessStart{Shell: "echo $A-$HOME-$USER-$LOGNAME; echo $PATH; env | grep -c RINGFENCE", Env: map[string]string{"A": "1 2"}})
			if !strings.HasPrefix(r.stdout, "1 2-/root-root-root\n/") {
				t.Errorf("got %+v", r)
			}
			if b.gvisor && !strings.HasSuffix(r.stdout, "\n0\n") {
				t.Errorf("a command sees variables of the agent: %q", r.stdout)
			}
		})
		t.Run("WorkDir", func(t *testing.T) {
			if r := b.run(t, guestproto.ProcessStart{Shell: "pwd", WorkDir: "/usr/bin"}); r.stdout != "/usr/bin\n" {
				t.Errorf("got %+v", r)
			}
			for _, dir := range []string{"/no/such", "relative", "/etc/passwd"} {
				_, err := b.conn.Start(testContext(t), guestproto.ProcessStart{ID: newID(), Shell: "true", WorkDir: dir}, nil)
				wantCode(t, err, ringfence.CodeInvalidArgument, "cwd")
			}
		})
		t.Run("UnknownUser", func(t *testing.T) {
			_, err := b.conn.Start(testContext(t), guestproto.ProcessStart{ID: newID(), Shell: "true", User: "nobody-here"}, nil)
			wantCode(t, err, ringfence.CodeInvalidArgument, "user")
		})
		t.Run("NotFound", func(t *testing.T) {
			for program, want := range map[string]int{"no-such-program": 127, "/no/such": 127, "/etc/passwd": 126, "/usr": 126, "": 127} {
				r := b.run(t, guestproto.ProcessStart{Args: []string{program}})
				if r.exit.ExitCode != want || r.stderr == "" || r.pid != 0 {
					t.Errorf("%q: got %+v, want exit code %d", program, r, want)
				}
			}
		})
		t.Run("Stdin", func(t *testing.T) {
			p := b.start(t, guestproto.ProcessStart{ID: "cat", Args: []string{"wc", "-c"}, Stdin: true}, nil)
			ctx := testContext(t)
			if _, err := p.WriteStdin(ctx, make([]byte, 5<<20)); err != nil {
				t.Fatal(err)
			}
			if err := p.CloseStdin(ctx); err != nil {
				t.Fatal(err)
			}
			if exit, err := p.Wait(ctx); err != nil || exit.ExitCode != 0 {
				t.Errorf("got %+v, %v", exit, err)
			}
			if r := b.run(t, guestproto.ProcessStart{Args: []string{"cat"}}); r.stdout != "" || r.exit.ExitCode != 0 {
				t.Errorf("without stdin: got %+v", r)
			}
		})
		t.Run("StdinUnwanted", func(t *testing.T) {
			p := b.start(t, guestproto.ProcessStart{Shell: "exec <&-; sleep 0.3; exit 4", Stdin: true}, nil)
			ctx := testContext(t)
			_, err := p.WriteStdin(ctx, make([]byte, 8<<20))
			if err != nil {
				wantCode(t, err, ringfence.CodeFailedPrecondition, "")
			}
			if exit, err := p.Wait(ctx); err != nil || exit.ExitCode != 4 {
				t.Errorf("got %+v, %v", exit, err)
			}
		})
		t.Run("InvalidCalls", func(t *testing.T) {
			for _, ps := range []guestproto.ProcessStart{
				{ID: "../x", Shell: "true"}, {ID: "", Shell: "true"}, {ID: "x"}, {ID: "x", Shell: "a", Args: []string{"b"}},
				{ID: "x", Shell: "a\x00b"}, {ID: "x", Shell: "true", Env: map[string]string{"A=B": "c"}},
			} {
				if _, err := b.conn.Start(testContext(t), ps, nil); ringfence.CodeOf(err) != ringfence.CodeInvalidArgument {
					t.Errorf("%+v: got %v", ps, err)
				}
			}
			b.run(t, guestproto.ProcessStart{ID: "twice", Shell: "true"})
			_, err := b.conn.Start(testContext(t), guestproto.ProcessStart{ID: "twice", Shell: "true"}, nil)
			wantCode(t, err, ringfence.CodeAlreadyExists, "id")
		})
		t.Run("OtherUser", func(t *testing.T) {
			user := "user"
			if !b.gvisor {
				user = "1000"
			}
			r := b.run(t, guestproto.ProcessStart{Shell: "id -u; id -g; id -G; cat /etc/shadow 2>/dev/null || echo refused", User: user, WorkDir: "/"})
			if !strings.HasPrefix(r.stdout, "1000\n1000\n1000\n") || !strings.HasSuffix(r.stdout, "refused\n") {
				t.Errorf("got %+v", r)
			}
		})
		t.Run("Processes", func(t *testing.T) {
			list, err := b.conn.Processes(testContext(t))
			if err != nil || len(list) == 0 {
				t.Errorf("got %v, %v", list, err)
			}
		})
	})
}
