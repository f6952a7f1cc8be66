package template

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"ringfence.dev/ringfence"
)

// The public keys of Debian's archive, for hosts that have none.
//
//go:embed keyring/*.gpg
var keyring embed.FS

// tree is a root file system while it is built.
type tree struct {
	recipe  *Recipe
	dir     string // of the build; holds root, tmp and clients
	root    string
	tmp     string
	clients clients

	// How sandboxes of the template start.
	env     map[string]string
	user    string
	workDir string
	ready   string
	size    ringfence.Size
}

// stage is one part of a build with a title of its own.
type stage struct {
	title string
	run   func(ctx context.Context, line func(string)) error
}

// stages returns what there is to do up to the image.
func (t *tree) stages(base *ringfence.Template) []stage {
	r := t.recipe
	var out []stage
	packages := r.Debian.Packages
	if base == nil {
		out = append(out, stage{fmt.Sprintf("install Debian %s with %d packages", r.Base.Debian, len(packages)), t.debootstrap})
		packages = nil
	} else {
		out = append(out, stage{"unpack template " + base.Name, func(ctx context.Context, _ func(string)) error {
			return unpack(ctx, base.ImagePath, t.root)
		}})
	}
	if s, ok := t.installStage(packages); ok {
		out = append(out, s)
	}
	for i, step := range r.Steps {
		title := step.Name
		if title == "" {
			title = "step " + strconv.Itoa(i+1) + ": " + step.Run + step.Copy
		}
		out = append(out, stage{title, func(ctx context.Context, line func(string)) error {
			if step.Copy != "" {
				return t.copy(step)
			}
			return t.script(ctx, title, step, line)
		}})
	}
	if r.Python.Lock != "" {
		const title = "compile the Python libraries"
		out = append(out, stage{title, func(ctx context.Context, line func(string)) error { return t.compile(ctx, title, line) }})
	}
	return out
}

// installStage installs Debian's and Python's packages at the same time: they share
// no file, and each alone leaves a core idle.
func (t *tree) installStage(packages []string) (stage, bool) {
	var parts []string
	if len(packages) > 0 {
		parts = append(parts, fmt.Sprintf("%d Debian packages", len(packages)))
	}
	if t.recipe.Python.Lock != "" {
		parts = append(parts, fmt.Sprintf("%d Python libraries", t.recipe.locked()))
	}
	if len(parts) == 0 {
		return stage{}, false
	}
	title := "install " + strings.Join(parts, " and ")
	return stage{title, func(ctx context.Context, line func(string)) error {
		if err := t.leaveOut(); err != nil {
			return err
		}
		g, ctx := errgroup.WithContext(ctx)
		if len(packages) > 0 {
			g.Go(func() error { return t.aptInstall(ctx, title, packages, line) })
		}
		if t.recipe.Python.Lock != "" {
			g.Go(func() error { return t.pipInstall(ctx, title, line) })
		}
		return g.Wait()
	}}, true
}

// debootstrap fills the root with Debian.
func (t *tree) debootstrap(ctx context.Context, line func(string)) error {
	keys := filepath.Join(t.dir, "keys")
	if err := os.CopyFS(keys, mustSub(keyring, "keyring")); err != nil {
		return err
	}
	// mmdebstrap writes Debian's own source lines, as they will be in the image. While
	// it works the host's take their place, if the host has some.
	saved, ours := filepath.Join(t.dir, "sources.saved"), filepath.Join(t.dir, "sources.ours")
	args := []string{"mmdebstrap", "--verbose", "--mode=root", "--variant=apt", "--format=directory", "--keyring=" + keys,
		"--dpkgopt=force-unsafe-io", `--aptopt=Acquire::Languages "none"`, `--aptopt=APT::Install-Recommends "false"`}
	for _, o := range t.clients.apt {
		args = append(args, "--aptopt="+strings.TrimSuffix(o, ";"))
	}
	if len(t.recipe.Debian.LeaveOut) > 0 {
		// Not as --dpkgopt: mmdebstrap would filter each archive in Perl, which triples the
		// time of that step. dpkg is told before it installs them, and what came earlier is removed below.
		rules := filepath.Join(t.dir, "leave-out")
		if err := os.WriteFile(rules, []byte(t.leaveOutRules()), 0o644); err != nil {
			return err
		}
		args = append(args, "--extract-hook=cp "+quote(rules)+` "$1"/etc/dpkg/dpkg.cfg.d/`+t.leaveOutName())
	}
	if len(t.recipe.Debian.Packages) > 0 {
		args = append(args, "--include="+strings.Join(t.recipe.Debian.Packages, ","))
	}
	if len(t.clients.sources) > 0 {
		if err := os.WriteFile(ours, []byte(t.sourceLines()), 0o644); err != nil {
			return err
		}
		list := `"$1"/etc/apt/sources.list`
		args = append(args, "--setup-hook=cp "+list+" "+quote(saved)+" && cp "+quote(ours)+" "+list)
	}
	args = append(args, t.recipe.Base.Debian, t.root)
	j := jail{
		Dir:  "/",
		Env:  append([]string{"PATH=" + toolPath, "HOME=" + t.tmp, "TMPDIR=" + t.tmp, "LC_ALL=C.UTF-8"}, t.clients.proxies...),
		Args: args,
	}
	if err := j.run(ctx, "install Debian", line); err != nil {
		return err
	}
	if len(t.clients.sources) > 0 {
		if err := os.Rename(saved, filepath.Join(t.root, "etc/apt/sources.list")); err != nil {
			return err
		}
	}
	for _, p := range []string{"etc/apt/apt.conf.d/99mmdebstrap", "etc/dpkg/dpkg.cfg.d/99mmdebstrap"} {
		if err := os.Remove(filepath.Join(t.root, p)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return errors.Join(t.removeLeftOut(), t.placeholders())
}

// sourceLines returns the host's source lines for the recipe's suite. A template on
// another template takes the suite from there.
func (t *tree) sourceLines() string {
	suite := t.recipe.Base.Debian
	if suite == "" {
		suite = iniValues(host{root: "/"}.read(filepath.Join(t.root, "etc/os-release")))["VERSION_CODENAME"]
	}
	return strings.ReplaceAll(strings.Join(t.clients.sources, "\n")+"\n", suiteMark, suite)
}

// leaveOut tells dpkg what not to unpack, in the build and later in sandboxes.
func (t *tree) leaveOut() error {
	if len(t.recipe.Debian.LeaveOut) == 0 {
		return nil
	}
	return os.WriteFile(filepath.Join(t.root, "etc/dpkg/dpkg.cfg.d", t.leaveOutName()), []byte(t.leaveOutRules()), 0o644)
}

func (t *tree) leaveOutName() string {
	return "ringfence-" + strings.ReplaceAll(t.recipe.Name, ".", "-")
}

func (t *tree) leaveOutRules() string {
	var b strings.Builder
	b.WriteString("# Files that this template leaves out of Debian's packages.\n")
	for _, p := range t.recipe.Debian.LeaveOut {
		b.WriteString("path-exclude=" + p + "\n")
	}
	for _, p := range t.recipe.Debian.Keep {
		b.WriteString("path-include=" + p + "\n")
	}
	return b.String()
}

func (t *tree) aptInstall(ctx context.Context, title string, packages []string, line func(string)) error {
	if len(t.clients.sources) > 0 {
		if err := os.WriteFile(filepath.Join(t.dir, "clients/sources.list"), []byte(t.sourceLines()), 0o644); err != nil {
			return err
		}
	}
	script := `apt-get -q update && exec apt-get -qy install --no-install-recommends "$@"`
	return t.inside(account{home: "/root"}, "/", append([]string{"sh", "-c", script, "sh"}, packages...)).run(ctx, title, line)
}

// pipInstall installs the lock file for all users, with the pip that Debian keeps as
// a wheel, so that the image need not have pip before.
func (t *tree) pipInstall(ctx context.Context, title string, line func(string)) error {
	data, err := fs.ReadFile(t.recipe.files, path.Clean(t.recipe.Python.Lock))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(t.tmp, "requirements.lock"), data, 0o644); err != nil {
		return err
	}
	script := `
pip=$(ls /usr/share/python-wheels/pip-*.whl 2>/dev/null | head -n 1)
if [ -n "$pip" ]; then pip="$pip/pip"; else pip="-m pip"; fi
python3 $pip install --require-hashes --only-binary :all: --no-deps --no-compile --no-cache-dir --no-input \
	--disable-pip-version-check --no-warn-script-location --progress-bar off --break-system-packages \
	--root-user-action ignore -r /tmp/requirements.lock
`
	return t.inside(account{home: "/root"}, "/", []string{"sh", "-euc", script}).run(ctx, title, line)
}

// compile makes the libraries' .pyc files, after the steps have taken away what is not
// wanted: an import in a sandbox would compile what is missing, in each sandbox again.
// The image keeps the times of the sources, so ordinary .pyc files stay valid.
func (t *tree) compile(ctx context.Context, title string, line func(string)) error {
	script := `
site=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
PYTHONWARNINGS=ignore python3 -m compileall -q -j 0 "$site" ||
	echo "not all files compile: some libraries hold data that is named as a program"
`
	return t.inside(account{home: "/root"}, "/", []string{"sh", "-euc", script}).run(ctx, title, line)
}

// script runs a step's script in the root.
func (t *tree) script(ctx context.Context, title string, s Step, line func(string)) error {
	data, err := fs.ReadFile(t.recipe.files, path.Clean(s.Run))
	if err != nil {
		return err
	}
	name := "step-" + filepath.Base(s.Run)
	file := filepath.Join(t.tmp, name)
	if err := os.WriteFile(file, data, 0o644); err != nil {
		return err
	}
	who, err := t.account(s.User)
	if err != nil {
		return err
	}
	args := []string{"sh", "-eu", "/tmp/" + name}
	if strings.HasSuffix(name, ".py") {
		// -P: the script's directory is not where modules come from.
		args = []string{"python3", "-P", "/tmp/" + name}
	}
	return t.inside(who, who.home, args).run(ctx, title, line)
}

// inside is a jail in the root. Its environment is all that the command gets.
func (t *tree) inside(who account, dir string, args []string) jail {
	env := map[string]string{
		"PATH": toolPath, "LANG": "C.UTF-8",
	}
	for k, v := range t.env {
		env[k] = v
	}
	env["HOME"], env["USER"], env["LOGNAME"], env["TERM"] = who.home, who.name, who.name, "dumb"
	env["DEBIAN_FRONTEND"] = "noninteractive"
	var list []string
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	sort.Strings(list)
	if _, err := os.Stat(filepath.Join(t.root, dir)); err != nil {
		dir = "/"
	}
	return jail{
		Root: t.root, Tmp: t.tmp, Clients: filepath.Join(t.dir, "clients"), Resolve: true,
		UID: who.uid, GID: who.gid, Groups: who.groups, Dir: dir, Env: append(list, t.clients.env...), Args: args,
	}
}

func mustSub(f embed.FS, dir string) fs.FS {
	sub, err := fs.Sub(f, dir)
	if err != nil {
		panic(err) // only for a dir that is not a valid path
	}
	return sub
}

// quote makes s one word of a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
