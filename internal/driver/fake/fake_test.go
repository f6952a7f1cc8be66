package fake_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/driver/drivertest"
	"ringfence.dev/ringfence/internal/driver/fake"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

func testSpec(*testing.T) driver.Spec {
	return driver.Spec{
		ID: ringfence.NewSandboxID(), Hostname: "box",
		Size: ringfence.Size{VCPU: 1, MemoryMiB: 256, DiskMiB: 64},
	}
}

func TestConformance(t *testing.T) {
	drivertest.Run(t, drivertest.Harness{
		Open: func(*testing.T) driver.Driver { return fake.New(fake.Options{}) },
		Spec: testSpec,
	})
}

// TestConformanceSharedHost is the same with sandboxes that outlive their driver.
func TestConformanceSharedHost(t *testing.T) {
	host := fake.NewHost()
	open := func(*testing.T) driver.Driver { return fake.New(fake.Options{Host: host}) }
	drivertest.Run(t, drivertest.Harness{
		Open: open,
		Spec: testSpec,
		Abandon: func(t *testing.T, spec driver.Spec) {
			d := open(t)
			i, err := d.Create(context.Background(), spec)
			if err != nil {
				t.Fatal(err)
			}
			c := drivertest.Attach(t, i, spec)
			drivertest.Start(t, c, guestproto.ProcessStart{ID: drivertest.AbandonedProcess, Shell: "sleep 1000"})
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
		},
	})
}

// sandbox starts one with a session.
func sandbox(t *testing.T, o fake.Options) (driver.Instance, *guestlink.Conn) {
	t.Helper()
	spec := testSpec(t)
	i, err := fake.New(o).Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Kill(context.Background()) })
	return i, drivertest.Attach(t, i, spec)
}

func TestShell(t *testing.T) {
	_, c := sandbox(t, fake.Options{})
	for _, test := range []struct {
		script, out, err string
		status           int
	}{
		{`echo "a  b" 'c $x' d\ e`, "a  b c $x d e\n", "", 0},
		{`x=1; echo $x "${x}2" $none; y=3 env | head -n 0`, "1 12 \n", "", 0},
		{"false && echo no; false || echo yes; true && echo so", "yes\nso\n", "", 0},
		{"echo one > /tmp/f; echo two >> /tmp/f; cat < /tmp/f; cat /tmp/f | wc -l", "one\ntwo\n2\n", "", 0},
		{"echo out; echo err >&2; exit 3; echo never", "out\n", "err\n", 3},
		{"cat /none", "", "cat: /none: no such file or directory\n", 1},
		{"no-such-command", "", "sh: no-such-command: not found\n", 127},
		{`printf '%s-%s\n' a b c d; printf '\xff\101'`, "a-b\nc-d\n\xffA", "", 0},
		{"cd /home/user; pwd; cd ..; pwd", "/home/user\n/home\n", "", 0},
		{"sh -c 'echo inner; exit 4'; echo $?", "inner\n4\n", "", 0},
		{"yes | head -n 2; seq 2 4", "y\ny\n2\n3\n4\n", "", 0},
		{"echo 'open", "", "sh: syntax error: a quote is not closed\n", 2},
		{"sh -c 'sleep 600 & echo done'", "done\n", "", 0},
		{"# nothing\necho after # this", "after\n", "", 0},
	} {
		r := drivertest.Shell(t, c, test.script)
		if r.Stdout != test.out || r.Stderr != test.err || r.Exit.ExitCode != test.status {
			t.Errorf("%q gave %q, %q, %d; want %q, %q, %d", test.script, r.Stdout, r.Stderr, r.Exit.ExitCode, test.out, test.err, test.status)
		}
	}
}

func TestUsers(t *testing.T) {
	_, c := sandbox(t, fake.Options{})
	r := drivertest.RunCommand(t, c, guestproto.ProcessStart{Shell: "whoami; id -u; echo $HOME; echo no > /etc/x", User: "user"})
	if r.Stdout != "user\n1000\n/home/user\n" || r.Exit.ExitCode != 1 {
		t.Errorf("got %+v", r)
	}
	_, err := c.Start(t.Context(), guestproto.ProcessStart{ID: "x", Shell: "true", User: "nobody-here"}, nil)
	wantField(t, err, "user")
	_, err = c.Start(t.Context(), guestproto.ProcessStart{ID: "y", Shell: "true", WorkDir: "/none"}, nil)
	wantField(t, err, "cwd")
	_, err = c.WriteFile(t.Context(), guestproto.FileWrite{FilePath: guestproto.FilePath{Path: "/root/x", User: "user"}}, strings.NewReader("x"))
	if ringfence.CodeOf(err) != ringfence.CodeFilePermission && err != nil {
		t.Errorf("user writes to /root: %v", err)
	}
	info, err := c.WriteFile(t.Context(), guestproto.FileWrite{FilePath: guestproto.FilePath{Path: "/srv/a/b"}, Owner: "user", Mode: 0o600}, strings.NewReader("x"))
	if err != nil || info.Owner != "user" || info.Mode != 0o600 {
		t.Errorf("got %+v, %v", info, err)
	}
}

func wantField(t *testing.T, err error, field string) {
	t.Helper()
	var e *ringfence.Error
	if !errors.As(err, &e) || e.Code != ringfence.CodeInvalidArgument || e.Field != field {
		t.Errorf("got %v, want field %s", err, field)
	}
}

// TestKillTree: a deadline ends the command and what it left in the background.
func TestKillTree(t *testing.T) {
	_, c := sandbox(t, fake.Options{})
	cmd := drivertest.Start(t, c, guestproto.ProcessStart{ID: "p", Shell: "echo begun; sleep 1000 & sleep 1000"})
	for cmd.Output() == "" {
		time.Sleep(time.Millisecond)
	}
	if err := c.Kill(t.Context(), guestproto.ProcessKill{ID: "p", Signal: 9, Tree: true, Reason: "deadline"}); err != nil {
		t.Fatal(err)
	}
	r, err := cmd.Finish(t.Context())
	if err != nil || r.Exit.ExitCode != 137 || r.Exit.Reason != "deadline" || r.Stdout != "begun\n" {
		t.Errorf("got %+v, %v", r, err)
	}
}

// TestTroubles is what the fake is for.
func TestTroubles(t *testing.T) {
	t.Run("OOM", func(t *testing.T) {
		_, c := sandbox(t, fake.Options{})
		if r := drivertest.Shell(t, c, "fake-oom"); r.Exit.ExitCode != 137 || r.Exit.Reason != "oom" {
			t.Errorf("got %+v", r.Exit)
		}
	})
	t.Run("OOMSandbox", func(t *testing.T) {
		i, c := sandbox(t, fake.Options{})
		if _, err := drivertest.Start(t, c, guestproto.ProcessStart{Shell: "fake-oom-sandbox"}).Finish(t.Context()); err == nil {
			t.Error("the command ended without an error")
		}
		if <-i.Done(); i.Exit().Reason != ringfence.ReasonOOM {
			t.Errorf("got %+v", i.Exit())
		}
	})
	t.Run("CrashAfter", func(t *testing.T) {
		i, err := fake.New(fake.Options{CrashAfter: 20 * time.Millisecond}).Create(t.Context(), testSpec(t))
		if err != nil {
			t.Fatal(err)
		}
		if <-i.Done(); i.Exit().Reason != ringfence.ReasonCrashed {
			t.Errorf("got %+v", i.Exit())
		}
	})
	t.Run("StartError", func(t *testing.T) {
		broken := errors.New("broken")
		_, err := fake.New(fake.Options{StartError: func(driver.Spec) error { return broken }}).Create(t.Context(), testSpec(t))
		if !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("SlowStart", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := fake.New(fake.Options{StartDelay: time.Hour}).Create(ctx, testSpec(t))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("Stuck", func(t *testing.T) {
		i, err := fake.New(fake.Options{Stuck: true}).Create(t.Context(), testSpec(t))
		if err != nil {
			t.Fatal(err)
		}
		rwc, err := i.Link(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := guestlink.Attach(ctx, rwc); err == nil {
			t.Error("a stuck agent answers")
		}
	})
	t.Run("DiskFull", func(t *testing.T) {
		_, c := sandbox(t, fake.Options{})
		_, err := c.WriteFile(t.Context(), guestproto.FileWrite{FilePath: guestproto.FilePath{Path: "/big"}}, io.LimitReader(zeros{}, 65<<20))
		if ringfence.CodeOf(err) != ringfence.CodeDiskFull {
			t.Errorf("got %v", err)
		}
		if r := drivertest.Shell(t, c, "fake-bytes 70000000 > /big"); r.Exit.ExitCode != 1 {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("BigOutput", func(t *testing.T) {
		_, c := sandbox(t, fake.Options{})
		if r := drivertest.Shell(t, c, "fake-bytes 5000000"); len(r.Stdout) != 5_000_000 {
			t.Errorf("got %d bytes", len(r.Stdout))
		}
	})
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }
