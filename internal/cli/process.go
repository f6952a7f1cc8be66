package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

func (a *App) psCommand() *cobra.Command {
	var all bool
	var tag string
	c := &cobra.Command{
		Use:   "ps ID",
		Short: "List the processes of a sandbox that were started through Ringfence",
		Long: "List what runs in a sandbox and was started through Ringfence, the oldest first; with --all also what\n" +
			"ended in the last ten minutes. What these have started themselves, `ringfence exec ID -- ps -ef` lists.",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			filter := client.ProcessFilter{Tag: tag, State: ringfence.ProcessRunning}
			if all {
				filter.State = ""
			}
			processes, err := c.Open(args[0]).Processes(cmd.Context(), filter)
			if err != nil {
				return err
			}
			list := []processJSON{}
			var rows [][]string
			for _, p := range processes {
				i := p.Info()
				list = append(list, processOf(i))
				state := "running"
				if e := i.End; e != nil {
					state = "exit " + strconv.Itoa(e.ExitCode)
					if e.Reason != "" {
						state += " (" + e.Reason + ")"
					}
				}
				rows = append(rows, []string{i.ID, strconv.Itoa(i.PID), i.Tag, i.User, state, age(i.StartedAt), shorten(i.Command, 60)})
			}
			if a.json {
				return a.PrintJSON(map[string]any{"processes": list})
			}
			return a.table([]string{"PROCESS", "PID", "TAG", "USER", "STATE", "AGE", "COMMAND"}, rows)
		},
	}
	c.Flags().BoolVarP(&all, "all", "a", false, "ended ones too")
	c.Flags().StringVar(&tag, "tag", "", "only those with this tag")
	return c
}

// shorten cuts a line for a table.
func shorten(s string, n int) string {
	if runes := []rune(s); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return s
}

func (a *App) signalCommand() *cobra.Command {
	var tree bool
	c := &cobra.Command{
		Use:   "signal ID PROCESS [SIGNAL]",
		Short: "Send a signal to a process of a sandbox",
		Long: "Send a signal to a process: SIGTERM, or SIGNAL by name or number. PROCESS is its id as `ringfence ps` lists\n" +
			"it, its PID in the sandbox, or tag:NAME.",
		Example:           "  ringfence signal $id tag:web\n  ringfence signal $id cmd_2eabae4e16547005 KILL --tree",
		Args:              cobra.RangeArgs(2, 3),
		ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			name := "SIGTERM"
			if len(args) == 3 {
				name = args[2]
			}
			return c.Open(args[0]).Process(args[1]).Signal(cmd.Context(), name, tree)
		},
	}
	c.Flags().BoolVar(&tree, "tree", false, "to all that the process started too")
	return c
}

func (a *App) attachCommand() *cobra.Command {
	var from string
	var noStdin bool
	c := &cobra.Command{
		Use:   "attach ID PROCESS",
		Short: "Go back to a process of a sandbox",
		Long: "Show what a process writes and exit with its exit code. PROCESS is its id as `ringfence ps` lists it, its PID in\n" +
			"the sandbox, or tag:NAME. A process on a terminal gets this one, as `ringfence shell` does; of any other the\n" +
			"output comes from its beginning on, or what is kept of it, and a pipe or a file as stdin is given to it.\n" +
			"Ctrl-C leaves it running, on a terminal Ctrl-].",
		Example:           "  ringfence attach $id tag:build\n  ringfence attach $id cmd_2eabae4e16547005 --from end",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := parseFrom(from)
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			p := c.Open(args[0]).Process(args[1])
			info, err := p.Refresh(cmd.Context())
			if err != nil {
				return err
			}
			if t, terr := a.terminal(); terr == nil && info.Terminal && info.End == nil {
				if from == "" {
					at = client.FromEnd
				}
				session, err := attach(cmd.Context(), p, at)
				if err != nil {
					return err
				}
				// A program draws its screen again when the size changes.
				size := t.size()
				_ = session.Resize(max(size.Cols-1, 1), max(size.Rows, 1))
				_ = session.Resize(max(size.Cols, 1), max(size.Rows, 1))
				return a.converse(cmd.Context(), session, t)
			}
			if info.StdinOpen && !noStdin && !info.Terminal {
				if in := a.pipedStdin(); in != nil {
					session, err := attach(cmd.Context(), p, at)
					if err != nil {
						return err
					}
					return a.pump(cmd.Context(), session, in, true)
				}
			}
			result, err := p.Follow(cmd.Context(), client.FollowOptions{From: at, Stdout: a.out, Stderr: a.err, Lost: a.lost})
			if err != nil {
				return err
			}
			result.Lost = 0 // it was said
			return a.ended(result)
		},
	}
	c.Flags().StringVar(&from, "from", "", `position in the output to begin at, or "end"`)
	c.Flags().BoolVarP(&noStdin, "no-stdin", "n", false, "do not read stdin")
	return c
}

func parseFrom(s string) (uint64, error) {
	switch s {
	case "":
		return 0, nil
	case "end":
		return client.FromEnd, nil
	}
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil {
		return 0, usage("--from %q is neither a position nor \"end\"", s)
	}
	return n, nil
}

func (a *App) lost(bytes, _ uint64) { a.note("ringfence: %d bytes of output are missing here", bytes) }

// pipedStdin returns stdin if it is a pipe or a file, and nil for a terminal or a device.
func (a *App) pipedStdin() io.Reader {
	if file, ok := a.in.(*os.File); ok {
		info, err := file.Stat()
		if err != nil || info.Mode()&os.ModeCharDevice != 0 {
			return nil
		}
	}
	return a.in
}

// pump gives stdin to a process and writes its output, until it ends. The end of ctx
// ends the session, and the process as it was started; one that is kept is let go.
func (a *App) pump(ctx context.Context, s *client.Session, in io.Reader, keep bool) error {
	defer s.Close()
	unhook := context.AfterFunc(ctx, func() {
		if keep {
			_ = s.Detach()
		}
		s.Close()
	})
	defer unhook()
	go func() { // left behind when the process ends first: a read of a pipe cannot be called off
		_, err := io.Copy(stdinWriter{s}, in)
		if err == nil {
			err = s.CloseStdin()
		}
		if err != nil && ctx.Err() == nil && ringfence.CodeOf(err) != ringfence.CodeStdinClosed && s.Result() == nil {
			a.note("ringfence: cannot give stdin to the command: %s", Escape(err.Error()))
		}
	}()
	result, err := s.Copy(a.out, a.err)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		return err
	}
	return a.ended(result)
}

// stdinWriter hides all of a session but its Write.
type stdinWriter struct{ s *client.Session }

func (w stdinWriter) Write(p []byte) (int, error) { return w.s.Write(p) }

type processJSON struct {
	ID         string   `json:"id"`
	PID        int      `json:"pid"`
	Tag        *string  `json:"tag"`
	Command    string   `json:"command"`
	Args       []string `json:"args"`
	Cwd        string   `json:"cwd"`
	User       string   `json:"user"`
	PTY        bool     `json:"pty"`
	Stdin      bool     `json:"stdin"`
	StartedAt  *string  `json:"started_at"`
	State      string   `json:"state"`
	DeadlineAt *string  `json:"deadline_at"`
	Exit       *endJSON `json:"exit"`
	Log        logJSON  `json:"log"`
}

type endJSON struct {
	ExitCode int     `json:"exit_code"`
	Signal   *int    `json:"signal"`
	Reason   *string `json:"reason"`
	EndedAt  *string `json:"ended_at"`
}

type logJSON struct {
	Start uint64 `json:"start"`
	End   uint64 `json:"end"`
}

func processOf(i client.ProcessInfo) processJSON {
	j := processJSON{
		ID: i.ID, PID: i.PID, Tag: null(i.Tag), Command: i.Command, Args: i.Args, Cwd: i.WorkDir, User: i.User, PTY: i.Terminal, Stdin: i.StdinOpen,
		StartedAt: timeJSON(i.StartedAt), State: string(ringfence.ProcessRunning), DeadlineAt: timeJSON(i.DeadlineAt), Log: logJSON{i.LogStart, i.LogEnd},
	}
	if e := i.End; e != nil {
		j.State = string(ringfence.ProcessEnded)
		j.Exit = &endJSON{ExitCode: e.ExitCode, Reason: null(e.Reason), EndedAt: timeJSON(e.EndedAt)}
		if e.Signal != 0 {
			j.Exit.Signal = &e.Signal
		}
	}
	return j
}

// printStarted prints what became of a process that is left to itself.
func (a *App) printStarted(p *client.Process) error {
	if a.json {
		return a.PrintJSON(processOf(p.Info()))
	}
	_, err := io.WriteString(a.out, strings.TrimSpace(Escape(p.ID()))+"\n")
	return err
}
