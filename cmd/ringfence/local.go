package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/cli"
	"ringfence.dev/ringfence/internal/datadir"
	"ringfence.dev/ringfence/internal/engine"
	"ringfence.dev/ringfence/internal/sqlite"
	"ringfence.dev/ringfence/internal/template"
)

func keyCreateCommand(app *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make an API key in the data directory",
		Long: "Make an API key and print it; only its hash is kept. This writes to the data directory, so\n" +
			"it runs as the user that owns that, and whether the server runs or not.",
		Args: cobra.NoArgs,
	}
	name := cmd.Flags().String("name", "", "what the key is for, at most 128 bytes")
	load := configFlags(cmd, "data_dir")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		c, err := load()
		if err != nil {
			return err
		}
		if err := datadir.Prepare(c.DataDir); err != nil {
			return err
		}
		store, err := sqlite.Open(cmd.Context(), databasePath(c))
		if err != nil {
			return err
		}
		defer store.Close() // what was written is on the disk
		err = store.EnsureProject(cmd.Context(), ringfence.Project{
			ID: ringfence.DefaultProject, Name: ringfence.DefaultProject, CreatedAt: time.Now(),
		})
		if err != nil {
			return err
		}
		text := ringfence.NewAPIKey()
		key, err := engine.AddKey(cmd.Context(), store, ringfence.DefaultProject, *name, text)
		if err != nil {
			return err
		}
		if app.JSON() {
			return app.PrintJSON(map[string]string{"id": key.ID, "name": key.Name, "key": text, "created_at": ringfence.FormatTime(key.CreatedAt)})
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
		return err
	}
	return cmd
}

func templateBuildCommand(app *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "build NAME|./DIRECTORY",
		Short: "Build a template on this host",
		Long: "Build a built-in template, or the recipe in a directory, into the template directory. A\n" +
			"template whose recipe and base have not changed is kept as it is. Needs root.",
		Args: cobra.ExactArgs(1),
	}
	rebuild := cmd.Flags().Bool("rebuild", false, "build it although one of the same content is there")
	load := configFlags(cmd, "data_dir", "template_dir")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		if c.TemplateDir == filepath.Join(c.DataDir, "templates") {
			if err := datadir.Prepare(c.DataDir); err != nil {
				return err
			}
		}
		o := template.Options{Recipe: args[0], Dir: c.TemplateDir, Rebuild: *rebuild, Progress: cmd.OutOrStdout()}
		if app.JSON() {
			o.Progress = cmd.ErrOrStderr() // stdout is the result's
		}
		result, err := template.Build(cmd.Context(), o)
		if err != nil || !app.JSON() {
			return err
		}
		return app.PrintJSON(map[string]any{
			"name": result.Template.Name, "image": result.Template.Image, "recipe": result.Template.Recipe,
			"reused": result.Reused, "image_bytes": result.ImageSize, "took_seconds": result.Took.Seconds(),
		})
	}
	return cmd
}
