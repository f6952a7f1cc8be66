package main

import (
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ringfence.dev/ringfence/internal/config"
)

// configFlags adds flags for the keys with those names, for all when there are none,
// and returns what loads the configuration once the flags are parsed.
func configFlags(cmd *cobra.Command, names ...string) func() (*config.Config, error) {
	flags := cmd.Flags()
	file := flags.String("config", os.Getenv("RINGFENCE_CONFIG"), "TOML file with settings (env RINGFENCE_CONFIG; default "+config.DefaultFile+" if it exists)")
	flags.Lookup("config").DefValue = ""
	for _, k := range config.Keys {
		if len(names) > 0 && !slices.Contains(names, k.Name) {
			continue
		}
		// pflag would take what stands in backquotes for the name of the value.
		usage := strings.ReplaceAll(k.Usage, "`", "") + " (env " + k.Env() + ")"
		if k.IsBool() {
			flags.Bool(k.Flag(), false, usage)
		} else {
			flags.String(k.Flag(), k.Default, usage)
		}
		if k.Hidden {
			flags.Lookup(k.Flag()).Hidden = true
		}
	}
	return func() (*config.Config, error) {
		return config.Load(*file, given(flags), config.Environment)
	}
}

// given is the source of the flags that were set.
func given(flags *pflag.FlagSet) config.Source {
	return func(k config.Key) (string, bool) {
		f := flags.Lookup(k.Flag())
		if f == nil || !f.Changed {
			return "", false
		}
		return f.Value.String(), true
	}
}
