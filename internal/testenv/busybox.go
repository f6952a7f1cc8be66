package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

var busybox struct {
	once sync.Once
	path string
	err  error
	out  []byte
}

// BusyboxImage returns an EROFS image whose root holds a static busybox under all of
// its names and the users root and user: the smallest thing that a driver can start.
// It is made once a process, in the system's directory for temporary files, and stays
// there for the next.
func BusyboxImage(t testing.TB) string {
	t.Helper()
	program := RequireTool(t, "busybox", "busybox-static")
	mkfs := RequireTool(t, "mkfs.erofs", "erofs-utils")
	busybox.once.Do(func() { busybox.path, busybox.out, busybox.err = buildBusybox(program, mkfs) })
	if busybox.err != nil {
		t.Fatalf("cannot make the busybox image: %v: %s", busybox.err, busybox.out)
	}
	return busybox.path
}

func buildBusybox(program, mkfs string) (path string, out []byte, err error) {
	dir, err := os.MkdirTemp("", "ringfence-busybox-")
	if err != nil {
		return "", nil, err
	}
	defer os.RemoveAll(dir)
	root := filepath.Join(dir, "root")
	for _, d := range []string{"bin", "dev", "etc", "home/user", "mnt", "proc", "root", "run", "sys", "tmp", "usr/bin", "var", "workspace"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return "", nil, err
		}
	}
	binary, err := os.ReadFile(program)
	if err != nil {
		return "", nil, err
	}
	files := map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n",
		"etc/group":  "root:x:0:\nuser:x:1000:\n",
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o644); err != nil {
			return "", nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(root, "bin/busybox"), binary, 0o755); err != nil {
		return "", nil, err
	}
	if out, err := exec.Command("chroot", root, "/bin/busybox", "--install", "-s", "/bin").CombinedOutput(); err != nil {
		return "", out, err
	}
	for _, d := range []string{"home/user", "workspace"} {
		if err := os.Chown(filepath.Join(root, d), 1000, 1000); err != nil {
			return "", nil, err
		}
	}
	if err := os.Chmod(filepath.Join(root, "tmp"), 0o1777); err != nil {
		return "", nil, err
	}
	image := filepath.Join(dir, "image")
	if out, err := exec.Command(mkfs, "-Enoinline_data", "-T0", image, root).CombinedOutput(); err != nil {
		return "", out, err
	}
	path = filepath.Join(os.TempDir(), "ringfence-busybox.erofs")
	return path, nil, os.Rename(image, path)
}
