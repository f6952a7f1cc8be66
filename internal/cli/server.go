package cli

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
)

func (a *App) templateCommand() *cobra.Command {
	parent := &cobra.Command{Use: "template", Short: "Templates that sandboxes are made from"}
	parent.AddCommand(&cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the server's templates",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			templates, err := c.Templates(cmd.Context())
			if err != nil {
				return err
			}
			list := []templateJSON{}
			var rows [][]string
			for _, t := range templates {
				list = append(list, templateJSON{Name: t.Name, Aliases: t.Aliases, Image: t.Image, Recipe: t.Recipe, User: t.User, WorkDir: t.WorkDir,
					VCPU: t.VCPU, MemoryMiB: t.MemoryMiB, DiskMiB: t.DiskMiB, BuiltAt: timeJSON(t.BuiltAt)})
				rows = append(rows, []string{t.Name, strings.Join(t.Aliases, ","), t.User, fmt.Sprint(t.VCPU), fmt.Sprint(t.MemoryMiB), fmt.Sprint(t.DiskMiB),
					age(t.BuiltAt), t.Image[:min(len(t.Image), 12)]})
			}
			if a.json {
				return a.PrintJSON(map[string]any{"templates": list})
			}
			return a.table([]string{"NAME", "ALIASES", "USER", "VCPU", "MEMORY MIB", "DISK MIB", "AGE", "IMAGE"}, rows)
		},
	})
	return parent
}

type templateJSON struct {
	Name      string   `json:"name"`
	Aliases   []string `json:"aliases"`
	Image     string   `json:"image"`
	Recipe    string   `json:"recipe"`
	User      string   `json:"user"`
	WorkDir   string   `json:"work_dir"`
	VCPU      int      `json:"vcpu"`
	MemoryMiB int64    `json:"memory_mib"`
	DiskMiB   int64    `json:"disk_mib"`
	BuiltAt   *string  `json:"built_at"`
}

func (a *App) keyCommand() *cobra.Command {
	parent := &cobra.Command{Use: "key", Short: "API keys"}
	parent.AddCommand(&cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List API keys; the keys themselves are not kept",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			keys, err := c.Keys(cmd.Context())
			if err != nil {
				return err
			}
			list := []keyJSON{}
			var rows [][]string
			for _, k := range keys {
				list = append(list, keyJSON{ID: k.ID, Name: k.Name, CreatedAt: timeJSON(k.CreatedAt), LastUsedAt: timeJSON(k.LastUsedAt)})
				rows = append(rows, []string{k.ID, k.Name, age(k.CreatedAt), age(k.LastUsedAt)})
			}
			if a.json {
				return a.PrintJSON(map[string]any{"keys": list})
			}
			return a.table([]string{"ID", "NAME", "AGE", "LAST USED"}, rows)
		},
	}, &cobra.Command{
		Use:   "rm ID…",
		Short: "Make API keys useless",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, ids []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			for _, id := range ids {
				if err := c.DeleteKey(cmd.Context(), id); err != nil {
					return fmt.Errorf("%s: %w", id, err)
				}
			}
			if a.json {
				return a.PrintJSON(map[string]any{"removed": ids})
			}
			return nil
		},
	})
	return parent
}

type keyJSON struct {
	ID         string  `json:"id"`
	Name       string  `json:"name"`
	CreatedAt  *string `json:"created_at"`
	LastUsedAt *string `json:"last_used_at"`
}

func (a *App) versionCommand() *cobra.Command {
	var server bool
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versionJSON{Version: first(a.version, "unknown"), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			if server {
				c, err := a.client()
				if err != nil {
					return err
				}
				h, err := c.Health(cmd.Context())
				if err != nil {
					return err
				}
				v.Server = h.Version
			}
			if a.json {
				return a.PrintJSON(v)
			}
			fmt.Fprintf(a.out, "ringfence %s (%s, %s)\n", v.Version, v.Go, v.Platform)
			if server {
				fmt.Fprintf(a.out, "server    %s\n", Escape(v.Server))
			}
			return nil
		},
	}
	c.Flags().BoolVar(&server, "server", false, "ask the server for its version too")
	return c
}

type versionJSON struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Server   string `json:"server,omitempty"`
}
