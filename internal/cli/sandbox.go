package cli

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

// createFlags are the flags that make a sandbox, shared by create and run.
type createFlags struct {
	template, name, user string
	vcpu                 int
	memoryMiB, diskMiB   int64
	snapshot             string
	env, metadata        []string
	policy               policyFlags
}

func (f *createFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVarP(&f.template, "template", "t", "", "template to make it from (default code-interpreter)")
	flags.StringVar(&f.snapshot, "snapshot", "", "snapshot to start from, instead of a template")
	flags.StringVar(&f.name, "name", "", "name shown in lists")
	flags.StringVar(&f.user, "user", "", "who runs commands (default: the template's user)")
	flags.IntVar(&f.vcpu, "vcpu", 0, "cores (default: the template's)")
	flags.Int64Var(&f.memoryMiB, "memory", 0, "memory in MiB (default: the template's)")
	flags.Int64Var(&f.diskMiB, "disk", 0, "disk that can be written, in MiB (default: the template's)")
	flags.StringArrayVarP(&f.env, "env", "e", nil, "KEY=VALUE for every command; KEY alone takes the value from here")
	flags.StringArrayVar(&f.metadata, "metadata", nil, "KEY=VALUE to list it by")
	f.policy.add(c)
}

func (f *createFlags) options() (client.CreateOptions, error) {
	env, err := pairs("env", f.env, os.LookupEnv)
	if err != nil {
		return client.CreateOptions{}, err
	}
	metadata, err := pairs("metadata", f.metadata, nil)
	if err != nil {
		return client.CreateOptions{}, err
	}
	o := client.CreateOptions{Name: f.name, Template: f.template, VCPU: f.vcpu, MemoryMiB: f.memoryMiB, DiskMiB: f.diskMiB, Snapshot: f.snapshot,
		Env: env, Metadata: metadata, User: f.user}
	o.Network = f.policy.policy()
	return o, nil
}

// pairs reads KEY=VALUE; a KEY alone is looked up if that is possible.
func pairs(flag string, list []string, lookup func(string) (string, bool)) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	m := make(map[string]string, len(list))
	for _, item := range list {
		key, value, ok := strings.Cut(item, "=")
		if !ok && lookup != nil {
			value, ok = lookup(key)
			if !ok {
				return nil, usage("--%s %s: no such variable here", flag, key).WithHint("give it as --%s %s=VALUE", flag, key)
			}
		}
		if !ok || key == "" {
			return nil, usage("--%s %q is not KEY=VALUE", flag, item)
		}
		m[key] = value
	}
	return m, nil
}

// lifetime checks a duration flag of which 0 means none.
func lifetime(flag string, d time.Duration) error {
	if d < 0 {
		return usage("--%s %s is negative", flag, d).WithHint("give a duration such as 90s or 10m, or 0 for none")
	}
	return nil
}

func (a *App) createCommand() *cobra.Command {
	var f createFlags
	var timeout, idle, autoDelete time.Duration
	var onTimeout, key string
	var noResume bool
	c := &cobra.Command{
		Use:   "create",
		Short: "Make a sandbox and print its id",
		Example: "  id=$(ringfence create --template code-interpreter --timeout 10m)\n" +
			"  ringfence exec $id -- python --version\n  ringfence kill $id",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := f.options()
			if err == nil {
				err = lifetime("timeout", timeout)
			}
			if err != nil {
				return err
			}
			if err := lifetime("idle-timeout", idle); err != nil {
				return err
			}
			o.Timeout, o.IdleTimeout, o.OnTimeout, o.NoAutoResume, o.IdempotencyKey = timeout, idle, ringfence.OnTimeout(onTimeout), noResume, key
			if cmd.Flags().Changed("auto-delete") {
				o.AutoDelete = &autoDelete
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			s, err := c.Create(cmd.Context(), o)
			if err != nil {
				return err
			}
			if a.json {
				j := sandboxOf(s.Info())
				j.AccessToken = string(s.AccessToken())
				return a.PrintJSON(j)
			}
			_, err = fmt.Fprintln(a.out, Escape(s.ID()))
			return err
		},
	}
	f.add(c)
	c.Flags().DurationVar(&timeout, "timeout", 0, "end it this long after its creation, and after each resume, such as 90s or 10m (default 0: never)")
	c.Flags().DurationVar(&idle, "idle-timeout", 0, "end it when nobody has used it for so long (default 0: never)")
	c.Flags().StringVar(&onTimeout, "on-timeout", "", "kill or pause it then (default kill)")
	c.Flags().DurationVar(&autoDelete, "auto-delete", 0, "delete it so long after it was paused; 0: at once (default never)")
	c.Flags().StringVar(&key, "idempotency-key", "", "name for this create: another one of the same name and flags prints the same sandbox")
	c.Flags().BoolVar(&noResume, "no-auto-resume", false, "refuse calls on it while it is paused instead of waking it")
	return c
}

func (a *App) listCommand() *cobra.Command {
	var all bool
	var states, metadata []string
	c := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List sandboxes, the newest first",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := pairs("metadata", metadata, nil)
			if err != nil {
				return err
			}
			o := client.ListOptions{Metadata: m, PageSize: 1000}
			for _, s := range states {
				o.States = append(o.States, ringfence.State(s))
			}
			if all {
				o.States = []ringfence.State{ringfence.StateStarting, ringfence.StateRunning, ringfence.StatePausing, ringfence.StatePaused,
					ringfence.StateResuming, ringfence.StateFailed, ringfence.StateDeleted}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			list := []sandboxJSON{}
			var rows [][]string
			for s, err := range c.List(cmd.Context(), o) {
				if err != nil {
					return err
				}
				i := s.Info()
				list = append(list, sandboxOf(i))
				state := string(i.State)
				if i.Reason != "" {
					state += " (" + string(i.Reason) + ")"
				}
				left := ""
				if !i.ExpiresAt.IsZero() && !i.State.Ended() {
					left = span(time.Until(i.ExpiresAt))
				}
				rows = append(rows, []string{i.ID, i.Name, i.Template, state, age(i.CreatedAt), left})
			}
			if a.json {
				return a.PrintJSON(map[string]any{"sandboxes": list})
			}
			return a.table([]string{"ID", "NAME", "TEMPLATE", "STATE", "AGE", "ENDS IN"}, rows)
		},
	}
	c.Flags().BoolVarP(&all, "all", "a", false, "ended ones too")
	c.Flags().StringSliceVar(&states, "state", nil, "only those in this state, such as running or failed")
	c.Flags().StringArrayVar(&metadata, "metadata", nil, "only those with this KEY=VALUE")
	c.MarkFlagsMutuallyExclusive("all", "state")
	return c
}

func (a *App) killCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "kill ID… | --all",
		Short: "End sandboxes and remove all that they had",
		Args: func(cmd *cobra.Command, ids []string) error {
			if all && len(ids) > 0 {
				return usage("--all and the ids %s contradict each other", strings.Join(ids, " "))
			}
			if !all && len(ids) == 0 {
				return usage("which sandbox?").WithHint("give an id, as `ringfence ls` lists them, or --all")
			}
			return nil
		},
		ValidArgsFunction: a.completeIDs(-1),
		RunE: func(cmd *cobra.Command, ids []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			if all {
				for s, err := range c.List(cmd.Context(), client.ListOptions{PageSize: 1000}) {
					if err != nil {
						return err
					}
					ids = append(ids, s.ID())
				}
			}
			killed := []string{}
			var failed error
			for _, id := range ids {
				if err := c.Kill(cmd.Context(), id); err != nil {
					err = fmt.Errorf("%s: %w", id, err)
					if failed == nil {
						failed = err // the others are still to be ended
					} else {
						a.note("ringfence: %s", Escape(err.Error()))
					}
					continue
				}
				killed = append(killed, id)
			}
			if a.json {
				if err := a.PrintJSON(map[string]any{"killed": killed}); err != nil {
					return err
				}
			}
			return failed
		},
	}
	c.Flags().BoolVar(&all, "all", false, "every sandbox that this key can list and that has not ended")
	return c
}

// completeIDs completes the ids of sandboxes for the first n arguments; −1 for all.
func (a *App) completeIDs(n int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if n >= 0 && len(args) >= n {
			return nil, cobra.ShellCompDirectiveDefault
		}
		c, err := a.client()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var found []cobra.Completion
		for s, err := range c.List(cmd.Context(), client.ListOptions{}) {
			if err != nil || len(found) == 100 {
				break
			}
			if strings.HasPrefix(s.ID(), prefix) && ringfence.ValidSandboxID(s.ID()) {
				found = append(found, cobra.CompletionWithDesc(s.ID(), Escape(s.Info().Name)))
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

type sandboxJSON struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Template  string            `json:"template"`
	State     ringfence.State   `json:"state"`
	Reason    *string           `json:"reason"`
	Detail    *string           `json:"detail"`
	VCPU      int               `json:"vcpu"`
	MemoryMiB int64             `json:"memory_mib"`
	DiskMiB   int64             `json:"disk_mib"`
	Metadata  map[string]string `json:"metadata"`
	User      string            `json:"user"`
	WorkDir   string            `json:"work_dir"`
	CreatedAt *string           `json:"created_at"`
	StartedAt *string           `json:"started_at"`
	EndedAt   *string           `json:"ended_at"`
	ExpiresAt *string           `json:"expires_at"`
	PausedAt  *string           `json:"paused_at"`
	IdleAt    *string           `json:"idle_at"`
	DeleteAt  *string           `json:"delete_at"`
	Network   policyJSON        `json:"network"`

	TimeoutSeconds     *float64            `json:"timeout_seconds"`
	OnTimeout          ringfence.OnTimeout `json:"on_timeout"`
	IdleTimeoutSeconds *float64            `json:"idle_timeout_seconds"`
	AutoDeleteSeconds  *float64            `json:"auto_delete_seconds"`
	AutoResume         bool                `json:"auto_resume"`

	AccessToken string `json:"access_token,omitempty"`
}

func sandboxOf(i client.Info) sandboxJSON {
	d := i.Deadlines
	return sandboxJSON{
		ID: i.ID, Name: i.Name, Template: i.Template, State: i.State, Reason: null(string(i.Reason)), Detail: null(i.Detail),
		VCPU: i.VCPU, MemoryMiB: i.MemoryMiB, DiskMiB: i.DiskMiB, Metadata: i.Metadata, User: i.User, WorkDir: i.WorkDir,
		CreatedAt: timeJSON(i.CreatedAt), StartedAt: timeJSON(i.StartedAt), EndedAt: timeJSON(i.EndedAt), ExpiresAt: timeJSON(i.ExpiresAt),
		PausedAt: timeJSON(i.PausedAt), IdleAt: timeJSON(i.IdleAt), DeleteAt: timeJSON(i.DeleteAt), Network: policyOf(i.Network),
		TimeoutSeconds: secondsJSON(nonZero(d.Timeout)), OnTimeout: d.OnTimeout, IdleTimeoutSeconds: secondsJSON(nonZero(d.IdleTimeout)),
		AutoDeleteSeconds: secondsJSON(d.AutoDelete), AutoResume: !d.NoAutoResume,
	}
}

func nonZero(d time.Duration) *time.Duration {
	if d == 0 {
		return nil
	}
	return &d
}

// secondsJSON is a time that passes as the API spells it; null for nil.
func secondsJSON(d *time.Duration) *float64 {
	if d == nil {
		return nil
	}
	s := d.Seconds()
	return &s
}

func null(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
