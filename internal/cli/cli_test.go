package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
	"ringfence.dev/ringfence/internal/api/apitest"
	"ringfence.dev/ringfence/internal/driver/fake"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"ringfence": func() { os.Exit(New(Options{Version: "v0-test"}).Main()) },
	})
}

// TestScripts runs the real command line, as a process of its own, against a server.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			// One each: scripts run beside each other, and one of them kills all there is.
			server := apitest.Start(e.T().(testing.TB), fake.Options{})
			e.Setenv("RINGFENCE_URL", server.URL)
			e.Setenv("RINGFENCE_API_KEY", server.Key)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code":   code,
			"setvar": setvar,
		},
	})
}

// code N PROGRAM ARG… runs a program and wants exit code N.
func code(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("%s: exit code %d, want %d", strings.Join(args[1:], " "), got, want)
	}
}

// setvar NAME sets a variable to what the last command printed.
func setvar(ts *testscript.TestScript, neg bool, args []string) {
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

// TestWatch follows a directory until something is heard of it, and is then interrupted.
func TestWatch(t *testing.T) {
	server := apitest.Start(t, fake.Options{})
	c, err := client.New(client.Options{BaseURL: server.URL, APIKey: server.Key})
	if err != nil {
		t.Fatal(err)
	}
	sb, err := c.Create(t.Context(), client.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const bad = "/tmp/w/a\x1bb"
	for _, test := range []struct {
		flags []string
		want  string
	}{
		{nil, `^(create|modify|rename_to) +/tmp/w/a\\x1bb$`},
		{[]string{"--json"}, `"path": "/tmp/w/a\\u001bb"`},
	} {
		want := regexp.MustCompile(test.want)
		if _, err := sb.Files().Write(t.Context(), bad, strings.NewReader("0"), client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		out, in := io.Pipe()
		ended := make(chan int, 1)
		var serr bytes.Buffer
		go func() {
			a := New(Options{Out: in, Err: &serr, In: strings.NewReader("")})
			args := append(test.flags, "--url", server.URL, "--api-key", server.Key, "files", "watch", "-r", sb.ID()+":/tmp/w")
			ended <- a.Run(ctx, args)
			in.Close()
		}()
		// Nothing says that the watch has begun: the file is written until something comes.
		go func() {
			for i := 0; ctx.Err() == nil; i++ {
				_, _ = sb.Files().Write(ctx, bad, strings.NewReader(strconv.Itoa(i)), client.WriteOptions{})
			}
		}()
		heard := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if want.MatchString(lines.Text()) && !heard {
				heard = true
				cancel(interrupted{syscall.SIGINT})
			}
		}
		if code := <-ended; !heard || code != 130 {
			t.Errorf("%v: heard %v, exit code %d, %s", test.flags, heard, code, serr.String())
		}
		cancel(nil)
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain, ünïcödé 日本": "plain, ünïcödé 日本",
		"\x1b[31mred":       `\x1b[31mred`,
		"\u009b31m":         `\u009b31m`,
		"a\u202eb":          `a\u202eb`,
		"a\u2066b\u200f":    `a\u2066b\u200f`,
		"a\xffb":            `a\xffb`,
		"a\nb\tc\rd\x00":    `a\nb\tc\rd\x00`,
		"\x7f":              `\x7f`,
		"\U000e0041":        `\U000e0041`,
		"\ufffd":            "\ufffd",
		"\u2028":            `\u2028`,
	} {
		if got := Escape(in); got != want {
			t.Errorf("Escape(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestJSONIsSafeForATerminal(t *testing.T) {
	var b bytes.Buffer
	if err := writeJSON(&b, "\x1b\u009b\u202e\x7f\U000e0041ü<&>"); err != nil {
		t.Fatal(err)
	}
	if want := `"\u001b\u009b\u202e\u007f\udb40\udc41ü<&>"` + "\n"; b.String() != want {
		t.Errorf("got %s, want %s", b.String(), want)
	}
}

func TestLocalCommands(t *testing.T) {
	var out, serr bytes.Buffer
	a := New(Options{Out: &out, Err: &serr, In: strings.NewReader(""), Local: []Local{
		{"", func(a *App) *cobra.Command {
			return &cobra.Command{Use: "serve", RunE: func(*cobra.Command, []string) error { return errors.New("a\x1bb") }}
		}},
		{"key", func(a *App) *cobra.Command {
			return &cobra.Command{Use: "create", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return a.PrintJSON("made") }}
		}},
	}})
	if got := a.Run(context.Background(), []string{"key", "create"}); got != 0 || out.String() != "\"made\"\n" {
		t.Errorf("got %d, %q", got, out.String())
	}
	if got := a.Run(context.Background(), []string{"serve"}); got != 1 || serr.String() != "ringfence: a\\x1bb\n" {
		t.Errorf("got %d, %q", got, serr.String())
	}
}

func TestHelpListsEveryCode(t *testing.T) {
	var out bytes.Buffer
	if got := New(Options{Out: &out}).Run(context.Background(), []string{"--help"}); got != 0 {
		t.Fatal(got)
	}
	for _, row := range ringfence.ErrorTable {
		if !strings.Contains(out.String(), string(row.Code)) {
			t.Errorf("the help does not name %s", row.Code)
		}
	}
}
