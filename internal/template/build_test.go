package template

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/testenv"
)

// TestMain can also be a program that builds, for the tests that kill one.
func TestMain(m *testing.M) {
	if recipe := os.Getenv("TEST_BUILD_RECIPE"); recipe != "" {
		_, err := Build(context.Background(), Options{Recipe: recipe, Dir: os.Getenv("TEST_BUILD_DIR"), Progress: os.Stdout})
		if err != nil {
			fmt.Println(err)
			os.Exit(ringfence.RowOf(ringfence.CodeOf(err)).Exit)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// baseStore is a template directory with nothing but the built base.
func baseStore(t *testing.T) Store {
	t.Helper()
	testenv.RequireRoot(t)
	testenv.RequireTemplate(t, "base")
	from := Store{Dir: testenv.TemplateDir()}
	r, err := Load("base")
	if err != nil {
		t.Fatal(err)
	}
	key, err := from.Key(r)
	if err != nil {
		t.Fatal(err)
	}
	base, err := from.Lookup("base")
	if err != nil {
		t.Fatal(err)
	}
	if base.Recipe != key {
		t.Fatalf("the base in %s is not of this tree's recipe: run `make template`", from.Dir)
	}
	return storeOf(t, base)
}

// tinyStore has a template of busybox alone, named tiny, on which a build is quick.
func tinyStore(t *testing.T) Store {
	t.Helper()
	testenv.RequireRoot(t)
	image := testenv.BusyboxImage(t)
	return storeOf(t, ringfence.Template{Name: "tiny", Image: "tiny", ImagePath: image, Recipe: "tiny", User: "root", WorkDir: "/", BuiltAt: time.Now()})
}

func storeOf(t *testing.T, base ringfence.Template) Store {
	t.Helper()
	testenv.RequireTool(t, "mkfs.erofs", "erofs-utils")
	s := Store{Dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(s.Dir, "images"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(base.ImagePath, s.ImagePath(base.Image)); err != nil {
		t.Fatal(err)
	}
	if err := s.write(base, ""); err != nil {
		t.Fatal(err)
	}
	return s
}

// onlyBase fails when the store holds more than baseStore made, or when a mount or a
// process of a build is left.
func onlyBase(t *testing.T, s Store) {
	t.Helper()
	for _, dir := range []string{"build", "images"} {
		entries, err := os.ReadDir(filepath.Join(s.Dir, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() != ".lock" && e.Type() != fs.ModeSymlink {
				t.Errorf("%s/%s is left", dir, e.Name())
			}
		}
	}
	if all, err := s.List(); err != nil || len(all) != 1 {
		t.Errorf("templates %v, %v", all, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), s.Dir) {
		t.Errorf("a mount is left: %s", mounts)
	}
	if p := processesIn(s.Dir); len(p) > 0 {
		t.Errorf("processes are left: %v", p)
	}
}

// processesIn lists the processes whose root lies below dir; a step's does not, as
// it was moved to the root of a mount, so it is found by the marker in its command.
func processesIn(marker string) (pids []string) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		line, _ := os.ReadFile(filepath.Join(p, "cmdline"))
		if bytes.Contains(line, []byte(marker)) && filepath.Base(p) != strconv.Itoa(os.Getpid()) {
			pids = append(pids, filepath.Base(p))
		}
	}
	return pids
}

// unpacked returns the tree of a template.
func unpacked(t *testing.T, tm ringfence.Template) string {
	t.Helper()
	dir := t.TempDir()
	if err := unpack(context.Background(), tm.ImagePath, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

const look = `
env | sort >/look-env
ls -A / >/look-root
cat /proc/[0-9]*/cmdline | tr '\0' ' ' >/look-processes
awk '{print $5}' /proc/self/mountinfo >/look-mounts
ls -A /dev /run >/look-dev
cat /run/ringfence-build/ca.pem >/dev/null
hostname >/look-host
ls -l /proc/self/fd/ | wc -l >/look-fds
awk '/CapBnd/ {print $2}' /proc/self/status >/look-caps
(echo x >/run/ringfence-build/x) 2>/dev/null && exit 3
(mknod /tmp/disk b 8 0) 2>/dev/null && exit 4
(mount -t tmpfs x /mnt) 2>/dev/null && exit 5
touch -d '2001-02-03 04:05:06.123456789' /timed
ln /timed /hard; ln -s timed /soft
cp /bin/true /suid; chmod 4755 /suid; chown user /workspace/.
mkdir -p '/odd dir'; touch '/odd dir/-n'
`

func TestBuild(t *testing.T) {
	s := baseStore(t)
	secret := "canary-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	hostFile := filepath.Join(t.TempDir(), "host-"+secret)
	ca := certificate(t, 77)
	if err := os.WriteFile(hostFile, []byte(ca), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("RINGFENCE_API_KEY", secret)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	recipe := recipeDir(t, `
name = "mine"
aliases = ["team/mine"]
user = "user"
work_dir = "/workspace"
[base]
template = "base"
[size]
memory_mib = 512
[env]
MINE = "yes"
[[steps]]
run = "look.sh"
[[steps]]
run = "who.sh"
user = "user"
[[steps]]
run = "who.py"
[[steps]]
copy = "files"
to = "/opt/files"
owner = "user"
mode = "0750"
`, map[string]string{"look.sh": look, "who.sh": "id -un >~/who; pwd >>~/who; id -G >>~/who", "who.py": "open('/who-py', 'w').write('python')", "files/a/b": "content"})

	var out bytes.Buffer
	o := Options{Recipe: recipe, Dir: s.Dir, Progress: &out, Environ: []string{"https_proxy=http://" + secret + ":1", "SSL_CERT_FILE=" + hostFile, "RINGFENCE_API_KEY=" + secret, "HOME=/root"}}
	res, err := Build(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	got, err := s.Lookup("team/mine")
	if err != nil {
		t.Fatal(err)
	}
	if got.User != "user" || got.WorkDir != "/workspace" || got.Env["MINE"] != "yes" || got.Env["LANG"] != "C.UTF-8" ||
		got.Size != (ringfence.Size{VCPU: 2, MemoryMiB: 512, DiskMiB: 8192}) || got.Image != res.Template.Image || res.Reused {
		t.Errorf("got %+v", got)
	}

	root := unpacked(t, got)
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	t.Run("what a step sees", func(t *testing.T) {
		for line := range strings.Lines(read("look-env")) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			switch name {
			case "PATH", "LANG", "HOME", "USER", "LOGNAME", "TERM", "DEBIAN_FRONTEND", "PWD", "SHLVL", "OLDPWD", "_", "MINE",
				"https_proxy", "PIP_CONFIG_FILE", "NPM_CONFIG_GLOBALCONFIG", "APT_CONFIG":
			default:
				if !strings.HasPrefix(value, clientDir+"/") {
					t.Errorf("%s reached the step", line)
				}
			}
		}
		if p := read("look-processes"); strings.Contains(p, "template.test") || !strings.Contains(p, "sh -eu") {
			t.Errorf("processes: %s", p)
		}
		if m := read("look-mounts"); strings.Contains(m, s.Dir) || !strings.HasPrefix(m, "/\n") {
			t.Errorf("mounts: %s", m)
		}
		if d := read("look-dev"); strings.Contains(d, "vda") || strings.Contains(d, "kvm") || strings.Contains(d, "sda") {
			t.Errorf("devices: %s", d)
		}
		if r := read("look-root"); strings.Contains(r, "host") {
			t.Errorf("root: %s", r)
		}
		if h := read("look-host"); h != "build\n" {
			t.Errorf("host name: %s", h)
		}
		if c := read("look-caps"); len(c) < 16 || c[len(c)-9:] == "ffffffff\n" {
			t.Errorf("capabilities: %s", c)
		}
		if w := read("home/user/who"); w != "user\n/home/user\n1000\n" {
			t.Errorf("user: %s", w)
		}
		if w := read("who-py"); w != "python" {
			t.Errorf("python step: %s", w)
		}
	})
	t.Run("what the image keeps", func(t *testing.T) {
		info, err := os.Stat(filepath.Join(root, "timed"))
		if err != nil {
			t.Fatal(err)
		}
		if want := time.Date(2001, 2, 3, 4, 5, 6, 123456789, time.UTC); !info.ModTime().Equal(want) {
			t.Errorf("time %v", info.ModTime().UTC())
		}
		if hard, err := os.Stat(filepath.Join(root, "hard")); err != nil || !os.SameFile(info, hard) {
			t.Errorf("hard link: %v", err)
		}
		if target, err := os.Readlink(filepath.Join(root, "soft")); err != nil || target != "timed" {
			t.Errorf("link: %s, %v", target, err)
		}
		if info, err := os.Stat(filepath.Join(root, "suid")); err != nil || info.Mode() != fs.ModeSetuid|0o755 {
			t.Errorf("suid: %v, %v", info.Mode(), err)
		}
		info, err = os.Stat(filepath.Join(root, "opt/files/a/b"))
		if err != nil || info.Mode() != 0o750 || info.Sys().(*syscall.Stat_t).Uid != 1000 || read("opt/files/a/b") != "content" {
			t.Errorf("copied: %v, %v", info, err)
		}
		if _, err := os.Stat(filepath.Join(root, "odd dir/-n")); err != nil {
			t.Error(err)
		}
	})
	t.Run("what must not remain", func(t *testing.T) {
		// What the step wrote down itself.
		for _, name := range []string{"look-env", "look-mounts"} {
			if err := os.Remove(filepath.Join(root, name)); err != nil {
				t.Fatal(err)
			}
		}
		caLine := strings.Split(ca, "\n")[2]
		for _, dir := range []string{"run", "tmp", "dev", "proc", "sys"} {
			if entries, err := os.ReadDir(filepath.Join(root, dir)); err != nil || len(entries) > 0 {
				t.Errorf("%s: %v, %v", dir, entries, err)
			}
		}
		err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			for _, bad := range []string{secret, caLine, s.Dir, clientDir} {
				if bytes.Contains(data, []byte(bad)) {
					t.Errorf("%s holds %q", strings.TrimPrefix(p, root), bad)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	t.Run("again", func(t *testing.T) {
		began := time.Now()
		res, err := Build(t.Context(), o)
		if err != nil || !res.Reused || res.Template.Image != got.Image {
			t.Errorf("got %+v, %v", res, err)
		}
		if took := time.Since(began); took > 500*time.Millisecond {
			t.Errorf("reuse took %v", took)
		}
	})
}
