package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"ringfence.dev/ringfence/client"
)

// filesCommand is what can be done to the files of a sandbox in place.
func (a *App) filesCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "files",
		Short: "List, search, watch and change files of a sandbox",
		Long:  "List, search, watch and change files of a sandbox. Every file is named ID:/PATH. `ringfence cp` copies them in and out.",
	}
	var user string
	c.PersistentFlags().StringVarP(&user, "user", "u", "", "who acts in the sandbox (default: root)")
	on := func(f func(ctx context.Context, files client.Files, path string, rest []string) error) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, args []string) error {
			id, path, ok := remotePath(args[0])
			if !ok {
				return usage("%q names no file of a sandbox", args[0]).WithHint("such as ID:/home/user/data.csv")
			}
			client, err := a.client()
			if err != nil {
				return err
			}
			return f(cmd.Context(), client.Open(id).Files().As(user), path, args[1:])
		}
	}
	c.AddCommand(a.filesList(on), a.filesFind(on), a.filesWatch(on), a.filesSum(on), a.filesSign(on), a.filesMode(on), a.filesMeta(on))
	c.AddCommand(a.filesSimple(on)...)
	return c
}

type onFile = func(func(ctx context.Context, files client.Files, path string, rest []string) error) func(*cobra.Command, []string) error

func (a *App) filesList(on onFile) *cobra.Command {
	var depth int
	var long bool
	c := &cobra.Command{
		Use: "ls ID:/PATH", Short: "List a directory", Args: cobra.ExactArgs(1),
		RunE: on(func(ctx context.Context, files client.Files, path string, _ []string) error {
			var all []fileLine
			for info, err := range files.Walk(ctx, path, client.WalkOptions{Depth: depth}) {
				if err != nil {
					return err
				}
				switch {
				case a.json:
					all = append(all, lineOf(info))
				case long:
					fmt.Fprintf(a.out, "%04o %-8s %-8s %12d %s %s\n", info.Mode, Escape(info.Owner), Escape(info.Group), info.Size,
						info.ModifiedAt.Format("2006-01-02 15:04:05"), listName(info))
				default:
					fmt.Fprintln(a.out, listName(info))
				}
			}
			if a.json {
				return a.PrintJSON(all)
			}
			return nil
		}),
	}
	c.Flags().IntVar(&depth, "depth", 1, "how many levels, up to 64")
	c.Flags().BoolVarP(&long, "long", "l", false, "with permissions, owner, group, size and time")
	return c
}

// fileLine is a file in JSON.
type fileLine struct {
	Path       string            `json:"path"`
	Type       string            `json:"type"`
	Size       int64             `json:"size"`
	Mode       string            `json:"mode"`
	Owner      string            `json:"owner"`
	Group      string            `json:"group"`
	ModifiedAt time.Time         `json:"modified_at"`
	Target     string            `json:"target,omitempty"`
	ETag       string            `json:"etag"`
	Metadata   map[string]string `json:"metadata,omitempty"`
}

func lineOf(i client.FileInfo) fileLine {
	return fileLine{i.Path, i.Type, i.Size, fmt.Sprintf("%04o", i.Mode), i.Owner, i.Group, i.ModifiedAt, i.Target, i.ETag, i.Metadata}
}

func listName(i client.FileInfo) string {
	switch i.Type {
	case client.TypeDirectory:
		return Escape(i.Path) + "/"
	case client.TypeSymlink:
		return Escape(i.Path) + " -> " + Escape(i.Target)
	}
	return Escape(i.Path)
}

func (a *App) filesFind(on onFile) *cobra.Command {
	var s client.Search
	c := &cobra.Command{
		Use: "find ID:/PATH", Short: "Search files by name and by content", Args: cobra.ExactArgs(1),
		Example: "  ringfence files find --name '*.py' $id:/home/user\n  ringfence files find --text 'def main' --name '**/src/*' $id:/home/user",
		RunE: on(func(ctx context.Context, files client.Files, path string, _ []string) error {
			matches, truncated, err := files.Search(ctx, path, s)
			if err != nil {
				return err
			}
			if a.json {
				return a.PrintJSON(map[string]any{"matches": matches, "truncated": truncated})
			}
			for _, m := range matches {
				if m.Line > 0 {
					fmt.Fprintf(a.out, "%s:%d: %s\n", Escape(m.Path), m.Line, Escape(m.Text))
				} else {
					fmt.Fprintln(a.out, Escape(m.Path))
				}
			}
			if truncated {
				fmt.Fprintln(a.err, "there is more; --limit says how much is shown")
			}
			return nil
		}),
	}
	c.Flags().StringVar(&s.Name, "name", "", "pattern for the name; with a slash for the path, where ** is any number of directories")
	c.Flags().StringVar(&s.Content, "text", "", "what a line holds")
	c.Flags().BoolVar(&s.Regex, "regex", false, "--text is a regular expression (RE2)")
	c.Flags().BoolVarP(&s.IgnoreCase, "ignore-case", "i", false, "upper and lower case in --text are the same")
	c.Flags().IntVar(&s.Depth, "depth", 0, "how many levels (default: all)")
	c.Flags().IntVar(&s.Limit, "limit", 1000, "how many are found at most, up to 10,000")
	return c
}

func (a *App) filesWatch(on onFile) *cobra.Command {
	var recursive bool
	c := &cobra.Command{
		Use: "watch ID:/PATH", Short: "Print what happens to files, until it is interrupted", Args: cobra.ExactArgs(1),
		RunE: on(func(ctx context.Context, files client.Files, path string, _ []string) error {
			return files.Watch(ctx, path, client.WatchOptions{Recursive: recursive}, func(c client.Change) error {
				if a.json {
					return a.PrintJSON(c)
				}
				_, err := fmt.Fprintf(a.out, "%-11s %s\n", c.Type, Escape(c.Path))
				return err
			})
		}),
	}
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "also the directories in it, new ones too")
	return c
}

func (a *App) filesSum(on onFile) *cobra.Command {
	var algorithm string
	c := &cobra.Command{
		Use: "sum ID:/PATH", Short: "Print the checksum of a file, computed in the sandbox", Args: cobra.ExactArgs(1),
		RunE: on(func(ctx context.Context, files client.Files, path string, _ []string) error {
			sum, err := files.Checksum(ctx, path, algorithm)
			if err != nil {
				return err
			}
			if a.json {
				return a.PrintJSON(sum)
			}
			_, err = fmt.Fprintf(a.out, "%s  %s\n", Escape(sum.Checksum), Escape(path))
			return err
		}),
	}
	c.Flags().StringVar(&algorithm, "algorithm", "sha256", "sha256, sha512, sha1, md5 or crc32c")
	return c
}

func (a *App) filesSign(on onFile) *cobra.Command {
	var write bool
	var life time.Duration
	c := &cobra.Command{
		Use: "sign ID:/PATH", Short: "Print a URL that opens one file without a key, for a while", Args: cobra.ExactArgs(1),
		RunE: on(func(ctx context.Context, files client.Files, path string, _ []string) error {
			sign := files.DownloadURL
			if write {
				sign = files.UploadURL
			}
			signed, err := sign(ctx, path, life)
			if err != nil {
				return err
			}
			if a.json {
				return a.PrintJSON(map[string]any{"url": signed.URL, "expires_at": signed.ExpiresAt})
			}
			_, err = fmt.Fprintln(a.out, signed.URL)
			return err
		}),
	}
	c.Flags().BoolVar(&write, "write", false, "to write the file, with PUT or a form; to read it otherwise")
	c.Flags().DurationVar(&life, "for", time.Hour, "how long it is good, up to 168h")
	return c
}

func (a *App) filesMode(on onFile) *cobra.Command {
	var m client.ModeChange
	var mode string
	c := &cobra.Command{
		Use: "mode ID:/PATH", Short: "Change permissions, owner and group", Args: cobra.ExactArgs(1),
		RunE: on(func(ctx context.Context, files client.Files, path string, _ []string) error {
			if mode != "" {
				bits, err := strconv.ParseUint(mode, 8, 16)
				if err != nil || bits > 0o7777 {
					return usage("--mode %q is no permission in octal", mode).WithHint("such as 0644 or 755")
				}
				value := uint32(bits)
				m.Mode = &value
			}
			info, err := files.Chmod(ctx, path, m)
			return a.printFile(info, err)
		}),
	}
	c.Flags().StringVar(&mode, "mode", "", "permissions in octal")
	c.Flags().StringVar(&m.Owner, "owner", "", "owner, by name or number")
	c.Flags().StringVar(&m.Group, "group", "", "group, by name or number")
	c.Flags().BoolVarP(&m.Recursive, "recursive", "r", false, "also all that is in a directory")
	return c
}

// printFile prints a file in JSON, if that is wanted.
func (a *App) printFile(info client.FileInfo, err error) error {
	if err != nil || !a.json {
		return err
	}
	return a.PrintJSON(lineOf(info))
}

func (a *App) filesMeta(on onFile) *cobra.Command {
	var remove []string
	c := &cobra.Command{
		Use: "meta ID:/PATH [KEY=VALUE…]", Short: "Print, set or remove the metadata of a file", Args: cobra.MinimumNArgs(1),
		RunE: on(func(ctx context.Context, files client.Files, path string, rest []string) error {
			set := map[string]string{}
			for _, pair := range rest {
				key, value, ok := strings.Cut(pair, "=")
				if !ok {
					return usage("%q is not KEY=VALUE", pair)
				}
				set[key] = value
			}
			info, err := files.Stat(ctx, path)
			if len(set)+len(remove) > 0 {
				info, err = files.SetMetadata(ctx, path, set, remove...)
			}
			if err != nil || a.json {
				return a.printFile(info, err)
			}
			for _, key := range slices.Sorted(maps.Keys(info.Metadata)) {
				fmt.Fprintf(a.out, "%s=%s\n", Escape(key), Escape(info.Metadata[key]))
			}
			return nil
		}),
	}
	c.Flags().StringSliceVar(&remove, "remove", nil, "keys to remove")
	return c
}

// filesSimple are the commands that are one call.
func (a *App) filesSimple(on onFile) []*cobra.Command {
	var all, recursive bool
	var format string
	rm := &cobra.Command{
		Use: "rm ID:/PATH", Short: "Remove a file or a directory", Args: cobra.ExactArgs(1),
		RunE: on(func(ctx context.Context, files client.Files, path string, _ []string) error {
			if all {
				return files.RemoveAll(ctx, path)
			}
			return files.Remove(ctx, path)
		}),
	}
	rm.Flags().BoolVarP(&all, "recursive", "r", false, "a directory with all that is in it")
	cp := &cobra.Command{
		Use: "copy ID:/PATH /PATH", Short: "Copy a file or a directory within the sandbox", Args: cobra.ExactArgs(2),
		RunE: on(func(ctx context.Context, files client.Files, path string, rest []string) error {
			info, err := files.Copy(ctx, path, rest[0], client.CopyOptions{Recursive: recursive})
			return a.printFile(info, err)
		}),
	}
	cp.Flags().BoolVarP(&recursive, "recursive", "r", false, "needed for a directory")
	tar := &cobra.Command{
		Use: "archive ID:/PATH", Short: "Write a directory to stdout, as an archive", Args: cobra.ExactArgs(1),
		Long: "Write a directory to stdout, as an archive. It comes out of a sandbox: take care what unpacks it. `ringfence cp -r` does it safely.",
		RunE: on(func(ctx context.Context, files client.Files, path string, _ []string) error {
			body, err := files.ReadArchive(ctx, path, format)
			if err != nil {
				return err
			}
			defer body.Close()
			_, err = io.Copy(a.out, body)
			return err
		}),
	}
	tar.Flags().StringVar(&format, "format", "tar", "tar, tar.gz or zip")
	return []*cobra.Command{rm, cp, tar,
		{
			Use: "stat ID:/PATH", Short: "Print what is known about a file, as JSON", Args: cobra.ExactArgs(1),
			RunE: on(func(ctx context.Context, files client.Files, path string, _ []string) error {
				info, err := files.Stat(ctx, path)
				if err != nil {
					return err
				}
				return a.PrintJSON(lineOf(info))
			}),
		}, {
			Use: "mkdir ID:/PATH", Short: "Make a directory with its parents", Args: cobra.ExactArgs(1),
			RunE: on(func(ctx context.Context, files client.Files, path string, _ []string) error {
				info, err := files.Mkdir(ctx, path, client.MkdirOptions{})
				return a.printFile(info, err)
			}),
		}, {
			Use: "mv ID:/PATH /PATH", Short: "Move a file or a directory within the sandbox", Args: cobra.ExactArgs(2),
			RunE: on(func(ctx context.Context, files client.Files, path string, rest []string) error {
				info, err := files.Rename(ctx, path, rest[0])
				return a.printFile(info, err)
			}),
		}}
}
