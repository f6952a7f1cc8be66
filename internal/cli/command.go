package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

func (a *App) execCommand() *cobra.Command {
	var shell, user, dir, tag string
	var env []string
	var timeout time.Duration
	var noStdin, detach, terminal bool
	c := &cobra.Command{
		Use:   "exec ID [flags] -- PROGRAM [ARG…]",
		Short: "Run a command in a sandbox",
		Long: "Run a command in a sandbox, show what it writes as it comes and exit with its exit code.\n\n" +
			"The command's output is passed on byte for byte. On a terminal that means that it can move the\n" +
			"cursor, change colours or the title: pipe it through `cat -v` if it is not to be trusted.\n\n" +
			"When stdin is a pipe or a file it is given to the command as it comes. Ctrl-C kills the command with all\n" +
			"that it started; the sandbox goes on. With --detach the command is started and left to itself, and its id\n" +
			"printed: `ringfence attach` goes back to it. With --tty it runs on this terminal, as `ringfence shell` does.",
		Example: "  ringfence exec $id -- python cell.py\n  ringfence exec $id -c 'ls | wc -l'\n" +
			"  ringfence exec $id -d --tag web -- python -m http.server 8000\n" +
			"  ringfence exec $id -- tar -C /home/user -cz . > home.tar.gz",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (shell == "") == (len(args) == 1) {
				return usage("give either a program or -c with a shell command").WithHint("such as: ringfence exec ID -- python cell.py")
			}
			if err := lifetime("timeout", timeout); err != nil {
				return err
			}
			vars, err := pairs("env", env, os.LookupEnv)
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			sandbox := c.Open(args[0])
			process := client.ProcessOptions{Shell: shell, Args: args[1:], WorkDir: dir, User: user, Env: vars, Tag: tag, Timeout: timeout}
			switch {
			case detach:
				p, err := sandbox.StartProcess(cmd.Context(), process)
				if err != nil {
					return err
				}
				return a.printStarted(p)
			case terminal:
				return a.onTerminal(cmd.Context(), sandbox, process)
			}
			if in := a.pipedStdin(); in != nil && !noStdin && !a.json {
				process.Stdin = true
				session, err := sandbox.StartSession(cmd.Context(), process, client.SessionOptions{Kill: true})
				if err != nil {
					return err
				}
				return a.pump(cmd.Context(), session, in, false)
			}
			command := client.Command{Shell: shell, Args: args[1:], WorkDir: dir, User: user, Env: vars, Tag: tag, Timeout: deadline(timeout)}
			if !noStdin {
				if command.Stdin, err = a.readStdin(cmd.Context()); err != nil {
					return err
				}
			}
			return a.runToEnd(cmd.Context(), sandbox, command, nil)
		},
	}
	flags := c.Flags()
	flags.SetInterspersed(true) // flags may follow the id; those of the program follow --
	flags.StringVarP(&shell, "command", "c", "", "a command for the sandbox's shell, instead of a program")
	flags.StringVarP(&dir, "cwd", "w", "", "working directory (default: the sandbox's)")
	flags.StringVarP(&user, "user", "u", "", "who runs it (default: the sandbox's user)")
	flags.StringArrayVarP(&env, "env", "e", nil, "KEY=VALUE; KEY alone takes the value from here")
	flags.DurationVar(&timeout, "timeout", 0, "kill it after this long, such as 30s (default 0: never)")
	flags.StringVar(&tag, "tag", "", "a name for it, by which ps, attach and signal find it as tag:NAME")
	flags.BoolVarP(&noStdin, "no-stdin", "n", false, "do not read stdin")
	flags.BoolVarP(&detach, "detach", "d", false, "start it, print its id and leave it running")
	flags.BoolVarP(&terminal, "tty", "t", false, "run it on this terminal")
	c.MarkFlagsMutuallyExclusive("detach", "tty")
	return c
}

// deadline turns a flag of which 0 means none into a command's Timeout.
func deadline(d time.Duration) time.Duration {
	if d == 0 {
		return client.NoTimeout
	}
	return d
}

// runToEnd runs a command and returns its exit code as an error, after what is to be
// done in any case. With --json it prints the result instead of the output.
func (a *App) runToEnd(ctx context.Context, s *client.Sandbox, command client.Command, after func() error) error {
	if !a.json {
		command.Stdout, command.Stderr = a.out, a.err
	}
	result, err := s.Run(ctx, command)
	if err != nil {
		return err
	}
	var later error
	if after != nil {
		later = after()
	}
	if a.json {
		if err := a.PrintJSON(resultOf(result)); err != nil {
			return err
		}
	}
	switch result.Reason {
	case client.ReasonDeadline:
		a.note("ringfence: the command's deadline passed; it was killed")
	case client.ReasonOOM:
		a.note("ringfence: the command ran out of memory; it was killed")
	}
	if result.ExitCode != 0 {
		if later != nil {
			a.note("ringfence: %s", Escape(later.Error()))
		}
		return exitStatus(result.ExitCode)
	}
	return later
}

// readStdin returns what stdin holds, read to its end, if it is a pipe or a file, and
// nil for a terminal or a device. It says so when nothing comes for a while: a program
// that was started with a pipe that nobody closes would otherwise wait in silence.
func (a *App) readStdin(ctx context.Context) (io.Reader, error) {
	if a.pipedStdin() == nil {
		return nil, nil
	}
	type outcome struct {
		data []byte
		err  error
	}
	done := make(chan outcome, 1)
	go func() { // left behind when ctx ends: a read of a pipe cannot be called off
		data, err := io.ReadAll(a.in)
		done <- outcome{data, err}
	}()
	patience := time.After(3 * time.Second)
	for {
		select {
		case o := <-done:
			if o.err != nil {
				return nil, fmt.Errorf("cannot read stdin: %w", o.err)
			}
			return bytes.NewReader(o.data), nil
		case <-patience:
			a.note("ringfence: waiting for the end of stdin; -n runs the command without it")
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// interpreters run a file by its extension.
var interpreters = map[string][]string{
	".py": {"python"}, ".js": {"node"}, ".mjs": {"node"}, ".cjs": {"node"}, ".sh": {"bash"},
}

func (a *App) runCommand() *cobra.Command {
	var f createFlags
	var outs []string
	var with string
	var timeout time.Duration
	var noStdin, keep bool
	c := &cobra.Command{
		Use:   "run FILE [ARG…]",
		Short: "Run a local program in a fresh sandbox",
		Long: "Make a sandbox, copy FILE into it, run it (.py with python, .js with node, .sh with bash), show what\n" +
			"it writes as it comes, remove the sandbox and exit with the program's exit code. Nothing but FILE goes\n" +
			"in, and nothing comes out but what --out names. Ctrl-C kills the program and the sandbox.\n\n" +
			"The program's output is passed on byte for byte, see `ringfence exec --help`. When stdin is a pipe or a\n" +
			"file it is read to its end and given to the program.",
		Example: "  ringfence run cell.py\n  ringfence run plot.py --out chart.png\n  ringfence run --timeout 60s job.sh one two",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			command := interpreters[strings.ToLower(filepath.Ext(args[0]))]
			if with != "" {
				command = strings.Fields(with)
			}
			if len(command) == 0 {
				return usage("cannot tell how to run %q", args[0]).WithHint("its name ends in none of .py, .js, .mjs, .cjs, .sh: say --with PROGRAM")
			}
			o, err := f.options()
			if err == nil {
				err = lifetime("timeout", timeout)
			}
			if err != nil {
				return err
			}
			copies := make([]copyOut, len(outs))
			for i, out := range outs {
				if copies[i], err = parseOut(out); err != nil {
					return err
				}
			}
			// Should this program be killed, the sandbox still ends.
			o.Timeout = 24 * time.Hour
			if timeout > 0 {
				o.Timeout = timeout + time.Minute
			}
			j := runJob{options: o, file: args[0], command: command, args: args[1:], outs: copies, timeout: timeout, keep: keep}
			if !noStdin {
				if j.stdin, err = a.readStdin(cmd.Context()); err != nil {
					return err
				}
			}
			return a.runFile(cmd.Context(), j)
		},
	}
	f.add(c)
	flags := c.Flags()
	flags.SetInterspersed(false) // what follows FILE is the program's
	flags.StringArrayVarP(&outs, "out", "o", nil, "PATH[:LOCAL], a file to copy out afterwards; PATH is relative to the program's directory")
	flags.StringVar(&with, "with", "", "program that runs FILE, with its own arguments, such as \"python -X utf8\"")
	flags.DurationVar(&timeout, "timeout", 0, "kill the program after this long, such as 60s (default 0: never; the sandbox lives 24h at most)")
	flags.BoolVarP(&noStdin, "no-stdin", "n", false, "do not read stdin")
	flags.BoolVar(&keep, "keep", false, "leave the sandbox, and print its id on stderr")
	return c
}

// copyOut is a file to copy out of a sandbox.
type copyOut struct{ remote, local string }

func parseOut(s string) (copyOut, error) {
	remote, local, _ := strings.Cut(s, ":")
	if local == "" {
		local = path.Base(remote)
	}
	if remote == "" || strings.HasSuffix(remote, "/") || local == "." || local == ".." || local == "/" {
		return copyOut{}, usage("--out %q names no file", s).WithHint("give PATH or PATH:LOCAL, such as chart.png or /tmp/chart.png:charts/one.png")
	}
	return copyOut{remote, local}, nil
}

type runJob struct {
	options client.CreateOptions
	file    string
	command []string
	args    []string
	outs    []copyOut
	stdin   io.Reader
	timeout time.Duration
	keep    bool
}

func (a *App) runFile(ctx context.Context, j runJob) (err error) {
	file, err := os.Open(j.file)
	if err != nil {
		return localFileError(err)
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.IsDir() {
		return usage("%q is a directory", j.file)
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	if j.options.Name == "" {
		j.options.Name = nameOf(j.file)
	}
	s, err := c.Create(ctx, j.options)
	if err != nil {
		return err
	}
	if j.keep {
		a.note("sandbox: %s", Escape(s.ID()))
	} else {
		defer func() {
			ctx, cancel := cleanup(ctx)
			defer cancel()
			if kerr := s.Kill(ctx); kerr != nil {
				a.note("ringfence: cannot end the sandbox %s: %s", Escape(s.ID()), Escape(kerr.Error()))
			}
		}()
	}
	dir := first(s.Info().WorkDir, "/")
	name := filepath.Base(j.file)
	if _, err := s.Files().Write(ctx, path.Join(dir, name), file, client.WriteOptions{}); err != nil {
		return fmt.Errorf("cannot copy %s into the sandbox: %w", j.file, err)
	}
	if strings.HasPrefix(name, "-") {
		name = "./" + name // or the interpreter takes it for a flag
	}
	command := client.Command{Args: slices.Concat(j.command, []string{name}, j.args), WorkDir: dir,
		Timeout: deadline(j.timeout), Stdin: j.stdin}
	return a.runToEnd(ctx, s, command, func() error {
		var failed error
		for _, out := range j.outs {
			remote := out.remote
			if !path.IsAbs(remote) {
				remote = path.Join(dir, remote)
			}
			if _, _, err := a.download(ctx, s.Files(), remote, out.local); err != nil {
				failed = errors.Join(failed, fmt.Errorf("cannot copy out %s: %w", out.remote, err))
			}
		}
		return failed
	})
}

// nameOf makes a sandbox's name of a file's.
func nameOf(file string) string {
	name := strings.ToValidUTF8(filepath.Base(file), "?")
	for len(name) > ringfence.MaxNameLength {
		_, n := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-n]
	}
	return name
}

// localFileError gives an error of a local file the exit code that the same fault
// has in a sandbox.
func localFileError(err error) error {
	code := ringfence.CodeInvalidArgument
	switch {
	case errors.Is(err, os.ErrNotExist):
		code = ringfence.CodeFileNotFound
	case errors.Is(err, os.ErrPermission):
		code = ringfence.CodeFilePermission
	}
	return &ringfence.Error{Code: code, Message: "on this machine: " + err.Error()}
}

type resultJSON struct {
	ID              string  `json:"id"`
	ExitCode        int     `json:"exit_code"`
	Reason          *string `json:"reason"`
	Signal          *int    `json:"signal"`
	Stdout          string  `json:"stdout"`
	Stderr          string  `json:"stderr"`
	StdoutBase64    string  `json:"stdout_base64,omitempty"`
	StderrBase64    string  `json:"stderr_base64,omitempty"`
	StdoutTruncated bool    `json:"stdout_truncated"`
	StderrTruncated bool    `json:"stderr_truncated"`
	Truncated       bool    `json:"truncated"`
	DurationMS      int64   `json:"duration_ms"`
	StartedAt       *string `json:"started_at"`
}

func resultOf(r *client.Result) resultJSON {
	j := resultJSON{
		ID: r.ID, ExitCode: r.ExitCode, Reason: null(r.Reason), StdoutTruncated: r.StdoutTruncated, StderrTruncated: r.StderrTruncated,
		Truncated: r.Truncated(), DurationMS: r.Duration.Milliseconds(), StartedAt: timeJSON(r.StartedAt),
	}
	if r.Signal != 0 {
		j.Signal = &r.Signal
	}
	j.Stdout, j.StdoutBase64 = outputText(r.Stdout)
	j.Stderr, j.StderrBase64 = outputText(r.Stderr)
	return j
}

// outputText returns output as text, and in base64 as well when it is none.
func outputText(b []byte) (text, encoded string) {
	if utf8.Valid(b) {
		return string(b), ""
	}
	return strings.ToValidUTF8(string(b), "\ufffd"), base64.StdEncoding.EncodeToString(b)
}
