// Package cli is the command line of Ringfence. It reaches a server through the
// public client alone; commands that work on the local machine, such as serve, are
// handed to New by cmd/ringfence.
//
// Text that came out of a sandbox is escaped before it is printed, but for what a
// command writes and a file holds: those bytes are what was asked for.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

// Options is what a command line is made of.
type Options struct {
	In       io.Reader // os.Stdin when nil
	Out, Err io.Writer // os.Stdout and os.Stderr when nil
	Version  string    // of the binary
	// Local are commands that need no server.
	Local []Local
}

// Local is a command that is added under Parent: "" for the root, "key" or "template".
type Local struct {
	Parent string
	Make   func(*App) *cobra.Command
}

// App is one run of the command line.
type App struct {
	in       io.Reader
	out, err io.Writer
	version  string
	root     *cobra.Command

	url, apiKey string // flags
	json        bool   // flag
	started     bool   // a command was found and its arguments were right

	mu   sync.Mutex
	exit func() // what has to be undone before the program ends at once; guarded by mu
}

// atExit sets what is done when a second signal ends the program at once, until the
// function that it returns is called.
func (a *App) atExit(f func()) func() {
	set := func(f func()) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.exit = f
	}
	set(f)
	return func() { set(nil) }
}

// New returns the command line.
func New(o Options) *App {
	a := &App{in: o.In, out: o.Out, err: o.Err, version: o.Version}
	if a.in == nil {
		a.in = os.Stdin
	}
	if a.out == nil {
		a.out = os.Stdout
	}
	if a.err == nil {
		a.err = os.Stderr
	}
	a.root = a.newRoot()
	for _, l := range o.Local {
		parent := a.root
		if l.Parent != "" {
			found, _, err := a.root.Find([]string{l.Parent})
			if err != nil {
				panic("cli: no command " + l.Parent) // a fault of the caller's source
			}
			parent = found
		}
		parent.AddCommand(l.Make(a))
	}
	a.prepare(a.root)
	return a
}

func (a *App) newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "ringfence",
		Short: "A sandbox service for code that a model wrote",
		Long: "Ringfence runs code that a model wrote in sandboxes on your own machine.\n\n" +
			"Start the server with `ringfence serve`; the other commands talk to it.\n\n" + environmentHelp + "\n" + exitHelp(),
		SilenceErrors: true, // Run prints them
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.CompletionOptions.HiddenDefaultCmd = false
	flags := root.PersistentFlags()
	flags.StringVar(&a.url, "url", "", "the server's address (env RINGFENCE_URL; default "+client.DefaultURL+")")
	flags.StringVar(&a.apiKey, "api-key", "", "API key (env RINGFENCE_API_KEY, which other users of the machine cannot see)")
	flags.BoolVar(&a.json, "json", false, "print JSON; errors too, on stderr")
	root.AddGroup(&cobra.Group{ID: "sandbox", Title: "Sandboxes:"}, &cobra.Group{ID: "server", Title: "Server:"})
	for _, c := range []*cobra.Command{a.runCommand(), a.createCommand(), a.listCommand(), a.execCommand(), a.shellCommand(), a.attachCommand(),
		a.psCommand(), a.signalCommand(), a.copyCommand(), a.filesCommand(), a.networkCommand(), a.portsCommand(), a.forwardCommand(), a.eventsCommand(), a.statsCommand(), a.killCommand(),
		a.infoCommand(), a.updateCommand(), a.pauseCommand(), a.resumeCommand(), a.forkCommand(), a.restoreCommand(), a.snapshotCommand()} {
		c.GroupID = "sandbox"
		root.AddCommand(c)
	}
	for _, c := range []*cobra.Command{a.templateCommand(), a.keyCommand(), a.benchCommand(), a.versionCommand()} {
		c.GroupID = "server"
		root.AddCommand(c)
	}
	return root
}

const environmentHelp = `Environment:
  RINGFENCE_URL      the server's address, ` + client.DefaultURL + ` when empty
  RINGFENCE_API_KEY  the API key
`

// exitHelp lists the exit codes out of the table that all of Ringfence uses.
func exitHelp() string {
	names := map[int][]string{}
	var codes []int
	for _, row := range ringfence.ErrorTable {
		if names[row.Exit] == nil {
			codes = append(codes, row.Exit)
		}
		names[row.Exit] = append(names[row.Exit], string(row.Code))
	}
	slices.Sort(codes)
	var b strings.Builder
	b.WriteString("Exit codes:\n  0    success\n")
	for _, c := range codes {
		fmt.Fprintf(&b, "  %-3d  %s\n", c, strings.Join(names[c], ", "))
	}
	b.WriteString("  130  interrupted\n`run`, `exec`, `shell` and `attach` exit with the program's own code: 124 when its deadline passed, 128+n for\nsignal n, 137 when it ran out of memory. With --json an error of Ringfence is told from it.\n")
	return b.String()
}

// prepare makes every command report wrong use as invalid_argument, and remembers
// that a command started, after which an error is no longer one of use.
func (a *App) prepare(c *cobra.Command) {
	if run := c.RunE; run != nil {
		c.RunE = func(cmd *cobra.Command, args []string) error {
			a.started = true
			return run(cmd, args)
		}
	}
	if c.RunE == nil && c.Run == nil && c.HasSubCommands() {
		c.Args = cobra.NoArgs
		c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	for _, sub := range c.Commands() {
		a.prepare(sub)
	}
}

// exitStatus ends the program with a code and without a message.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// interrupted is the cause of a context that a signal ended.
type interrupted struct{ signal syscall.Signal }

func (i interrupted) Error() string { return i.signal.String() }

// Main runs the program's own arguments and returns its exit code. SIGINT and SIGTERM
// end the context of the command, which then cleans up; a second one exits at once.
func (a *App) Main() int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 2)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) { // nohup, or a job in the background of a script
			signal.Notify(signals, s)
		}
	}
	// A closed pipe must be an error of Write: dying of it would leave a sandbox behind.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	go func() {
		s, _ := (<-signals).(syscall.Signal)
		cancel(interrupted{s})
		s, _ = (<-signals).(syscall.Signal)
		a.mu.Lock()
		if a.exit != nil {
			a.exit()
		}
		os.Exit(128 + int(s))
	}()
	return a.Run(ctx, os.Args[1:])
}

// Run runs one command and returns the exit code.
func (a *App) Run(ctx context.Context, args []string) int {
	a.root.SetArgs(args)
	cmd, err := a.root.ExecuteContextC(ctx)
	var status exitStatus
	var stop interrupted
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case errors.As(context.Cause(ctx), &stop):
		fmt.Fprintf(a.err, "ringfence: %s\n", stop)
		return 128 + int(stop.signal)
	case errors.Is(err, syscall.EPIPE):
		return 128 + int(syscall.SIGPIPE) // whoever reads stdout has enough
	}
	var e *ringfence.Error
	if !errors.As(err, &e) {
		e = &ringfence.Error{Code: ringfence.CodeOf(err), Message: err.Error()}
		if !a.started { // cobra's own words about flags and arguments
			e.Code = ringfence.CodeInvalidArgument
			e.Hint = "`ringfence help` lists the commands, `ringfence COMMAND --help` their flags"
			if cmd.Name() == "exec" && !slices.Contains(args, "--") {
				e.Hint = "what belongs to the program comes after --: ringfence exec ID -- ls -l"
			}
		}
	}
	a.printError(e, err)
	return ringfence.RowOf(e.Code).Exit
}

// client returns a client for the server that flags and environment name.
func (a *App) client() (*client.Client, error) {
	return client.New(client.Options{BaseURL: a.url, APIKey: a.apiKey, UserAgent: "ringfence-cli/" + first(a.version, "unknown")})
}

// cleanup returns a context for what has to be done although ctx ended.
func cleanup(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
}

// usage is an error about the arguments.
func usage(format string, args ...any) *ringfence.Error {
	return ringfence.Errorf(ringfence.CodeInvalidArgument, format, args...)
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
