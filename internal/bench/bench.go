// Package bench measures a running server through the public client: the rows that
// the design gives budgets for, by its names. docs/benchmarks.md says how each row is
// measured and what its figures leave out.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

// Options says what to measure.
type Options struct {
	Client   *client.Client
	Template string   // "code-interpreter" when empty
	Only     []string // names of rows; all when empty
	// Progress gets a line for each row as it is done; nil: none.
	Progress io.Writer
	// LargeBytes is the size of the rows that end in _1g: 10^9 when 0.
	LargeBytes int64
	// Binary is the program that `serve` starts a daemon with; "": daemon_ready is skipped.
	Binary string
	// Samples is how many samples a latency row takes; its own number when 0.
	Samples int
}

// row is one line of the table before it is measured.
type row struct {
	name   string
	unit   string
	higher bool     // whether more is better
	budget *float64 // nil: none
	what   string   // for docs and progress
	// measure takes the samples. nil: the row waits for what later says.
	measure func(*run, context.Context, *Row) error
	later   string
	asked   bool // only when it is named: it needs more of the host than others
}

func budget(v float64) *float64 { return &v }

const (
	unitMS      = "ms"
	unitMBs     = "MB/s"
	unitMB      = "MB"
	unitPercent = "% of a core"
)

// rows is every row, in the order in which they run: what an idle daemon needs comes
// before anything that makes it work.
func rows() []row {
	return []row{
		{name: "daemon_rss", unit: unitMB, budget: budget(60), what: "resident memory of the idle daemon", measure: (*run).daemonRSS},
		{name: "daemon_ready", unit: unitMS, budget: budget(300), what: "start of a daemon until it answers", measure: (*run).daemonReady},
		{name: "create_exec_pool", unit: unitMS, budget: budget(10), what: "create → first command done, from the pool", measure: (*run).createExecPool},
		{name: "create_exec_restore", unit: unitMS, budget: budget(100), what: "create → first command done, from a snapshot", measure: (*run).createExec},
		{name: "exec_true", unit: unitMS, budget: budget(5), what: "commands.run(\"true\")", measure: (*run).execTrue},
		{name: "pty_echo", unit: unitMS, budget: budget(5), what: "a key in a shell on a terminal until its echo", measure: (*run).ptyEcho},
		{name: "commands_64", unit: unitMS, what: "64 commands at once in one sandbox", measure: (*run).commands64},
		{name: "commands_500", unit: unitMS, what: "500 commands at once in 20 sandboxes", measure: (*run).commands500},
		{name: "busy_exec", unit: unitMS, budget: budget(1000), what: "commands.run(\"true\") with all cores busy and 95 % of the memory used", measure: (*run).busyExec},
		{name: "cell_pandas", unit: unitMS, budget: budget(100), what: "write a cell that uses pandas, run it with python", measure: (*run).cellPandas},
		{name: "burst_100", unit: unitMS, budget: budget(1000), what: "100 creates at once", measure: (*run).burst, asked: true},
		{name: "pause_100mb", unit: unitMS, budget: budget(150), what: "pause of a sandbox with 100 MB", measure: pauseAndResume(false)},
		{name: "resume_100mb", unit: unitMS, budget: budget(150), what: "resume of a sandbox with 100 MB", measure: pauseAndResume(true)},
		{name: "fork_pandas", unit: unitMS, budget: budget(150), what: "fork of a sandbox with pandas loaded → first command", measure: (*run).forkPandas},
		{name: "file_up_1k", unit: unitMS, what: "write 1 KB", measure: up("1k", 1e3, 100)},
		{name: "file_down_1k", unit: unitMS, what: "read 1 KB", measure: down("1k", 1e3, 100)},
		{name: "file_up_10m", unit: unitMBs, higher: true, budget: budget(500), what: "write 10 MB", measure: up("10m", 1e7, 20)},
		{name: "file_down_10m", unit: unitMBs, higher: true, budget: budget(500), what: "read 10 MB", measure: down("10m", 1e7, 20)},
		{name: "file_up_1g", unit: unitMBs, higher: true, budget: budget(500), what: "write 1 GB", measure: up("1g", 0, 3)},
		{name: "file_down_1g", unit: unitMBs, higher: true, budget: budget(500), what: "read 1 GB", measure: down("1g", 0, 3)},
		{name: "file_up_1g_rss", unit: unitMB, budget: budget(flatMB), what: "growth of the daemon's memory while 1 GB is written", measure: (*run).upRSS},
		{name: "file_down_1g_rss", unit: unitMB, budget: budget(flatMB), what: "growth of the daemon's memory while 1 GB is read", measure: (*run).downRSS},
		{name: "stdout_1g", unit: unitMBs, higher: true, budget: budget(500), what: "1 GB of a command's output, compared byte by byte", measure: (*run).stdout},
		{name: "net_tcp_down", unit: unitMBs, higher: true, budget: budget(300), what: "a flow through the gateway to a sandbox", measure: flow("d", 1)},
		{name: "net_tcp_down_64", unit: unitMBs, higher: true, budget: budget(300), what: "64 flows at once through the gateway to a sandbox, in sum", measure: flow("d", 64)},
		{name: "net_tcp_up", unit: unitMBs, higher: true, budget: budget(300), what: "a flow through the gateway from a sandbox", measure: flow("u", 1)},
		{name: "net_tcp_up_64", unit: unitMBs, higher: true, budget: budget(300), what: "64 flows at once through the gateway from a sandbox, in sum", measure: flow("u", 64)},
		{name: "net_connect", unit: unitMS, budget: budget(1), what: "what the gateway adds to a connect", measure: latency(0, "beyond the median of a connect within the sandbox")},
		{name: "dns_cached", unit: unitMS, budget: budget(1), what: "a lookup that the gateway answers", measure: latency(1, "of a name that the gateway knows itself; a cached one goes the same way")},
		{name: "net_idle", unit: unitMB, budget: budget(2), what: "memory of the daemon for an idle sandbox and its network", measure: (*run).netIdle},
		{name: "idle_sandbox_pss", unit: unitMB, budget: budget(20), what: "host memory of an idle sandbox", measure: (*run).idlePSS},
		{name: "idle_sandbox_cpu", unit: unitPercent, budget: budget(0), what: "CPU of an idle sandbox", measure: (*run).idleCPU},
		{name: "dialect_declaw", unit: unitMS, budget: budget(0.3), what: "added to the native call", measure: dialect(declawFile)},
		{name: "dialect_superserve", unit: unitMS, budget: budget(0.3), what: "added to the native call", measure: dialect(superserveFile)},
		{name: "dialect_e2b", unit: unitMS, budget: budget(0.3), what: "added to the native call", later: "there are no dialects yet"},
	}
}

// flatMB is the growth that still counts as flat: buffers of a few requests, and what
// the garbage collector has not come to yet.
const flatMB = 64

// Names returns the names of all rows, in order.
func Names() []string {
	var names []string
	for _, r := range rows() {
		names = append(names, r.name)
	}
	return names
}

// run is one run of the bench.
type run struct {
	o      Options
	box    *client.Sandbox // shared by the rows that need one; made when first needed
	kept   map[string]bool // sizes whose file is in box
	host   *hostView       // nil when the server is on another host
	remote error           // why host is nil
}

// Run measures the rows one after the other. A row that cannot be measured says why
// in Skipped; one that failed says so in Failed, and the others go on. The sandboxes
// that it made are removed, also when ctx ends.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	chosen, err := choose(o.Only)
	if err != nil {
		return nil, err
	}
	if o.LargeBytes == 0 {
		o.LargeBytes = 1e9
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if _, err := o.Client.Health(ctx); err != nil {
		return nil, err
	}
	r := &run{o: o, kept: map[string]bool{}}
	r.host, r.remote = findHost(o.Client.URL())
	defer func() {
		if r.box != nil {
			err = errors.Join(err, r.kill(ctx, r.box))
		}
	}()
	report = &Report{Machine: thisMachine()}
	for _, w := range chosen {
		result := Row{Name: w.name, Unit: w.unit, Budget: w.budget, higher: w.higher}
		if w.measure == nil {
			result.Skipped = w.later
			report.Rows = append(report.Rows, result)
			continue
		}
		fmt.Fprintf(o.Progress, "%-20s %s … ", w.name, w.what)
		began := time.Now()
		err := w.measure(r, ctx, &result)
		var skip skipped
		switch {
		case ctx.Err() != nil:
			fmt.Fprintln(o.Progress, "interrupted")
			return nil, context.Cause(ctx)
		case errors.As(err, &skip):
			result.Skipped = string(skip)
		case err != nil:
			result.Failed = err.Error()
		default:
			result.summarize()
		}
		fmt.Fprintf(o.Progress, "%s (%.1fs)\n", result.short(), time.Since(began).Seconds())
		report.Rows = append(report.Rows, result)
	}
	return report, nil
}

// choose returns the rows with these names, in the table's order.
func choose(only []string) ([]row, error) {
	all := rows()
	if len(only) == 0 {
		for i := range all {
			if all[i].asked {
				all[i].measure, all[i].later = nil, "ask for it with --only "+all[i].name
			}
		}
		return all, nil
	}
	names := Names()
	for _, name := range only {
		if !slices.Contains(names, name) {
			return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "there is no row %q", name).
				WithHint("the rows are %s", strings.Join(names, ", ")).WithField("only")
		}
	}
	return slices.DeleteFunc(all, func(r row) bool { return !slices.Contains(only, r.name) }), nil
}

// skipped is why a row cannot be measured here.
type skipped string

func (s skipped) Error() string { return string(s) }

// create makes a sandbox that ends by itself, should this program be killed.
func (r *run) create(ctx context.Context) (*client.Sandbox, error) {
	return r.o.Client.Create(ctx, client.CreateOptions{
		Name: "bench", Template: r.o.Template, Metadata: map[string]string{"made-by": "ringfence-bench"}, Timeout: time.Hour,
	})
}

// kill ends a sandbox although ctx may have ended.
func (r *run) kill(ctx context.Context, s *client.Sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err := s.Kill(ctx); err != nil {
		return fmt.Errorf("cannot end the sandbox %s: %w", s.ID(), err)
	}
	return nil
}

// sandbox returns the one that rows share.
func (r *run) sandbox(ctx context.Context) (*client.Sandbox, error) {
	if r.box == nil {
		s, err := r.create(ctx)
		if err != nil {
			return nil, err
		}
		r.box = s
	}
	return r.box, nil
}

// samples is how many samples to take of a row that wants n.
func (r *run) samples(n int) int {
	if r.o.Samples > 0 {
		return r.o.Samples
	}
	return n
}
