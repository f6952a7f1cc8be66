package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

func (a *App) copyCommand() *cobra.Command {
	var user, owner, mode string
	var recursive, skipLinks bool
	c := &cobra.Command{
		Use:   "cp FROM TO",
		Short: "Copy files into or out of a sandbox",
		Long: "Copy a file, or with -r a directory, into or out of a sandbox. One of the two is ID:/PATH, the other a local path, or - for\n" +
			"stdin or stdout. A target that is a local directory, or that ends in a slash, gets the file's own name.\n" +
			"A file is replaced at once when all of it is there.\n\n" +
			"With -r, a target that is a directory, or that ends in a slash, gets a directory of the source's own name in it,\n" +
			"unless the source ends in /. and stands for what is in it. Whatever a sandbox sends, nothing outside the target\n" +
			"is touched: links that lead out of it are refused.",
		Example: "  ringfence cp data.csv $id:/home/user/\n  ringfence cp $id:/home/user/chart.png .\n" +
			"  ringfence cp $id:/var/log/app.log - | tail\n  tar c dir | ringfence cp - $id:/tmp/dir.tar\n" +
			"  ringfence cp -r project $id:/home/user/\n  ringfence cp -r $id:/home/user/out/. results",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, args []string) error {
			o := client.WriteOptions{Owner: owner}
			if mode != "" {
				m, err := strconv.ParseUint(mode, 8, 16)
				if err != nil || m > 0o7777 || m == 0 {
					return usage("--mode %q is no permission in octal", mode).WithHint("such as 0644 or 755")
				}
				o.Mode = uint32(m)
			}
			fromID, fromPath, from := remotePath(args[0])
			toID, toPath, to := remotePath(args[1])
			if from == to {
				return usage("one of the two has to be in a sandbox, and one here").WithHint("such as: ringfence cp data.csv ID:/home/user/data.csv")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if recursive {
				d := dirCopy{files: c.Open(fromID + toID).Files().As(user), owner: owner, skipLinks: skipLinks}
				switch {
				case mode != "":
					return usage("--mode is about one file; with -r each keeps its own")
				case to:
					return a.uploadDir(cmd.Context(), d, args[0], toPath)
				case owner != "":
					return usage("--owner is about files in a sandbox")
				}
				return a.downloadDir(cmd.Context(), d, fromPath, args[1])
			}
			if skipLinks {
				return usage("--skip-links goes with -r")
			}
			if to {
				return a.upload(cmd.Context(), c.Open(toID).Files().As(user), args[0], toPath, o)
			}
			if owner != "" || mode != "" {
				return usage("--owner and --mode are about a file in a sandbox")
			}
			local, size, err := a.download(cmd.Context(), c.Open(fromID).Files().As(user), fromPath, args[1])
			if err != nil || !a.json || local == "-" {
				return err
			}
			return a.PrintJSON(map[string]any{"path": local, "size": size})
		},
	}
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "copy a directory with all that is in it")
	c.Flags().BoolVar(&skipLinks, "skip-links", false, "with -r out of a sandbox: leave links that lead out of the directory out, and name them")
	c.Flags().StringVarP(&user, "user", "u", "", "who acts in the sandbox (default: root)")
	c.Flags().StringVar(&owner, "owner", "", "who will own the file in the sandbox (default: who acts)")
	c.Flags().StringVar(&mode, "mode", "", "permissions of the file in the sandbox, in octal (default: the local file's)")
	return c
}

// remotePath splits ID:/PATH.
func remotePath(s string) (id, file string, ok bool) {
	id, file, ok = strings.Cut(s, ":")
	if !ok || !ringfence.ValidSandboxID(id) {
		return "", "", false
	}
	return id, file, true
}

func (a *App) upload(ctx context.Context, files client.Files, local, remote string, o client.WriteOptions) error {
	source := a.in
	if local != "-" {
		file, err := os.Open(local)
		if err != nil {
			return localFileError(err)
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return localFileError(err)
		}
		if info.IsDir() {
			return usage("%q is a directory", local).WithHint("copy it with -r")
		}
		if o.Mode == 0 && info.Mode().IsRegular() {
			o.Mode = uint32(info.Mode().Perm())
		}
		if strings.HasSuffix(remote, "/") {
			remote += filepath.Base(local)
		}
		source = file
	} else if strings.HasSuffix(remote, "/") {
		return usage("stdin has no name: say which file %s is to become", remote)
	}
	info, err := files.Write(ctx, remote, source, o)
	if err != nil {
		return err
	}
	if a.json {
		return a.PrintJSON(map[string]any{"path": info.Path, "size": info.Size})
	}
	return nil
}

// download copies a file out and returns where it is and its size. A local file is
// replaced when all bytes are there. Its permissions are those of any new file: a
// sandbox has no say over them.
func (a *App) download(ctx context.Context, files client.Files, remote, local string) (string, int64, error) {
	if local != "-" {
		if info, err := os.Stat(local); err == nil && info.IsDir() || strings.HasSuffix(local, "/") {
			name := path.Base(remote)
			if name == "/" || name == "." || name == ".." {
				return "", 0, usage("%q names no file", remote)
			}
			local = filepath.Join(local, name)
		}
	}
	body, err := files.Read(ctx, remote)
	if err != nil {
		var e *ringfence.Error
		if errors.As(err, &e) && e.Code == ringfence.CodeIsDirectory {
			return "", 0, e.WithHint("copy it with -r")
		}
		return "", 0, err
	}
	defer body.Close()
	if local == "-" {
		size, err := io.Copy(a.out, body)
		return local, size, err
	}
	size, err := replaceFile(local, body)
	return local, size, err
}

// replaceFile puts what r holds in the place of a file at once, or leaves it as it was.
func replaceFile(name string, r io.Reader) (size int64, err error) {
	if real, err := filepath.EvalSymlinks(name); err == nil {
		name = real // the link stays, what it points to is replaced
	}
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		file, err := os.OpenFile(name, os.O_WRONLY, 0) // a device or a named pipe
		if err != nil {
			return 0, localFileError(err)
		}
		size, err = io.Copy(file, r)
		return size, errors.Join(err, file.Close())
	}
	temp := filepath.Join(filepath.Dir(name), fmt.Sprintf(".%.200s.%d.part", filepath.Base(name), os.Getpid()))
	file, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return 0, localFileError(err)
	}
	size, err = io.Copy(file, r)
	if cerr := file.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(temp, name)
	}
	if err != nil {
		_ = os.Remove(temp)
		var e *ringfence.Error
		if !errors.As(err, &e) {
			err = localFileError(err)
		}
		return 0, err
	}
	return size, nil
}
