package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

// dirCopy is how a directory is copied.
type dirCopy struct {
	files     client.Files
	owner     string
	skipLinks bool
}

// within reports whether a directory's name ends so that it stands for what is in it.
func within(name string) bool { return name == "." || strings.HasSuffix(name, "/.") }

func (a *App) uploadDir(ctx context.Context, d dirCopy, local, remote string) error {
	info, err := os.Stat(local)
	if err != nil {
		return localFileError(err)
	}
	if !info.IsDir() {
		return usage("%q is no directory", local).WithHint("copy it without -r")
	}
	if !within(local) {
		into := strings.HasSuffix(remote, "/")
		if !into {
			there, err := d.files.Stat(ctx, remote)
			if err != nil && ringfence.CodeOf(err) != ringfence.CodeFileNotFound {
				return err
			}
			into = err == nil && there.IsDir()
		}
		if into {
			name, err := filepath.Abs(local)
			if err != nil {
				return localFileError(err)
			}
			remote = path.Join(remote, filepath.Base(name))
		}
	}
	got, err := d.files.UploadDir(ctx, local, remote, d.owner)
	return a.copied(remote, got, err)
}

func (a *App) downloadDir(ctx context.Context, d dirCopy, remote, local string) error {
	if local == "-" {
		return usage("a directory does not fit stdout").WithHint("ringfence files archive writes one")
	}
	if info, err := os.Stat(local); !within(remote) && (err == nil && info.IsDir() || strings.HasSuffix(local, "/")) {
		name := path.Base(path.Clean(remote))
		if name == "/" || !filepath.IsLocal(name) {
			return usage("%q has no name of its own", remote).WithHint("end it in /. and name the directory here")
		}
		local = filepath.Join(local, name)
	}
	o := client.DownloadOptions{}
	if d.skipLinks {
		o.LeadsOut = func(name, target string) {
			fmt.Fprintf(a.err, "left out: %s, a link to %s\n", Escape(name), Escape(target))
		}
	}
	got, err := d.files.DownloadDir(ctx, remote, local, o)
	return a.copied(local, got, err)
}

// copied says what was copied.
func (a *App) copied(to string, got client.Unpacked, err error) error {
	var e *ringfence.Error
	var local *os.PathError
	switch {
	case errors.As(err, &e):
		return err
	case errors.As(err, &local):
		return localFileError(err)
	case err != nil:
		return err
	case a.json:
		return a.PrintJSON(map[string]any{"path": to, "files": got.Files, "directories": got.Directories, "bytes": got.Bytes})
	}
	return nil
}
