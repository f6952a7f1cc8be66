package template

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// account is a user of the root.
type account struct {
	name     string
	uid, gid uint32
	groups   []uint32
	home     string
}

// account looks name up in the root's own files; empty is root.
func (t *tree) account(name string) (account, error) {
	if name == "" {
		name = "root"
	}
	r, err := os.OpenRoot(t.root)
	if err != nil {
		return account{}, err
	}
	defer r.Close()
	passwd, err := r.ReadFile("etc/passwd")
	if err != nil {
		return account{}, fmt.Errorf("cannot look up user %q: %w", name, err)
	}
	group, err := r.ReadFile("etc/group")
	if err != nil {
		return account{}, fmt.Errorf("cannot look up the groups of user %q: %w", name, err)
	}
	for line := range strings.Lines(string(passwd)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 7 || f[0] != name {
			continue
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return account{}, fmt.Errorf("cannot look up user %q: %w", name, err)
		}
		a := account{name: name, uid: uint32(uid), gid: uint32(gid), home: f[5]}
		for line := range strings.Lines(string(group)) {
			g := strings.Split(strings.TrimSpace(line), ":")
			if len(g) < 4 {
				continue
			}
			for member := range strings.SplitSeq(g[3], ",") {
				if id, err := strconv.ParseUint(g[2], 10, 32); member == name && err == nil {
					a.groups = append(a.groups, uint32(id))
				}
			}
		}
		return a, nil
	}
	return account{}, fmt.Errorf("the template has no user %q; an earlier step has to make it", name)
}

// copy puts files of the recipe into the root. The root is opened so that a link in
// it that points out of it is refused.
func (t *tree) copy(s Step) error {
	who, err := t.account(s.Owner)
	if err != nil {
		return err
	}
	mode := uint64(0o644)
	if s.Mode != "" {
		mode, _ = strconv.ParseUint(s.Mode, 8, 32) // checked with the recipe
	}
	r, err := os.OpenRoot(t.root)
	if err != nil {
		return err
	}
	defer r.Close()
	from := path.Clean(s.Copy)
	return fs.WalkDir(t.recipe.files, from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := strings.TrimPrefix(path.Join(s.To, strings.TrimPrefix(p, from)), "/")
		if to == "" {
			return nil
		}
		if d.IsDir() {
			return t.makeDir(r, to, who)
		}
		if err := t.makeDir(r, path.Dir(to), who); err != nil {
			return err
		}
		data, err := fs.ReadFile(t.recipe.files, p)
		if err != nil {
			return err
		}
		if err := r.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := r.WriteFile(to, data, 0o600); err != nil {
			return err
		}
		if err := r.Chown(to, int(who.uid), int(who.gid)); err != nil {
			return err
		}
		return r.Chmod(to, fileMode(mode))
	})
}

// makeDir makes dir and its parents; those that are there stay as they are.
func (t *tree) makeDir(r *os.Root, dir string, who account) error {
	done := ""
	for name := range strings.SplitSeq(dir, "/") {
		done = path.Join(done, name)
		err := r.Mkdir(done, 0o755)
		switch {
		case errors.Is(err, fs.ErrExist):
			continue
		case err != nil:
			return err
		}
		if err := r.Chown(done, int(who.uid), int(who.gid)); err != nil {
			return err
		}
	}
	return nil
}

// fileMode turns Unix permission bits into Go's.
func fileMode(bits uint64) fs.FileMode {
	m := fs.FileMode(bits & 0o777)
	for bit, flag := range map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if bits&bit != 0 {
			m |= flag
		}
	}
	return m
}

// placeholders writes the files that a sandbox is given its own content of, in place
// of what the host's tools copied from the host.
func (t *tree) placeholders() error {
	r, err := os.OpenRoot(t.root)
	if err != nil {
		return err
	}
	defer r.Close()
	for name, text := range map[string]string{
		"etc/resolv.conf": "",
		"etc/hostname":    "sandbox\n",
		"etc/hosts":       "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n",
		"etc/machine-id":  "",
	} {
		if err := r.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := r.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// leftovers are what package tools leave that no sandbox needs, as patterns below
// the root. Some of it would name the host's proxies.
var leftovers = []string{
	"dev/*", "dev/.*", "proc/*", "sys/*", "run/*", "tmp/*", "tmp/.*", "var/tmp/*",
	"var/lib/apt/lists/*", "var/cache/apt/*.bin", "var/cache/apt/archives/*", "var/cache/apt/archives/partial/*",
	"var/cache/debconf/*-old", "var/lib/dpkg/*-old", "var/cache/ldconfig/aux-cache", "var/log/apt/*", "var/log/*.log",
	"etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-",
	"root/.cache/pip", "root/.npm", "root/.wget-hsts", "root/.bash_history", "home/*/.cache/pip", "home/*/.npm",
}

// finish makes the tree what a sandbox should find.
func (t *tree) finish() error {
	for _, pattern := range leftovers {
		matches, err := filepath.Glob(filepath.Join(t.root, pattern))
		if err != nil {
			return err
		}
		for _, m := range matches {
			if base := filepath.Base(m); base == "." || base == ".." {
				continue
			}
			if err := os.RemoveAll(m); err != nil {
				return fmt.Errorf("cannot clean the tree: %w", err)
			}
		}
	}
	for _, dir := range []string{"dev", "proc", "sys", "run", "tmp"} {
		if err := os.MkdirAll(filepath.Join(t.root, dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(t.root, "tmp"), os.ModeSticky|0o777); err != nil {
		return err
	}
	if _, err := t.account(t.user); err != nil {
		return fmt.Errorf("user of the recipe: %w", err)
	}
	if info, err := os.Stat(filepath.Join(t.root, t.workDir)); err != nil || !info.IsDir() {
		return fmt.Errorf("work_dir %s is not a directory of the template; a step has to make it", t.workDir)
	}
	return t.placeholders()
}

// removeLeftOut removes the files below /usr/share that the rules of leaveOut match;
// like dpkg, a star matches slashes too, and directories stay.
func (t *tree) removeLeftOut() error {
	d := t.recipe.Debian
	if len(d.LeaveOut) == 0 {
		return nil
	}
	out, keep := patterns(d.LeaveOut), patterns(d.Keep)
	share := filepath.Join(t.root, "usr/share")
	return filepath.WalkDir(share, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name := strings.TrimPrefix(p, t.root)
		if out.MatchString(name) && (len(d.Keep) == 0 || !keep.MatchString(name)) {
			return os.Remove(p)
		}
		return nil
	})
}

// patterns turns shell patterns into one expression.
func patterns(list []string) *regexp.Regexp {
	var parts []string
	for _, p := range list {
		p = regexp.QuoteMeta(p)
		p = strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(p)
		parts = append(parts, p)
	}
	return regexp.MustCompile("^(?:" + strings.Join(parts, "|") + ")$")
}
