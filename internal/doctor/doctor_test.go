package doctor_test

import (
	"os"
	"path/filepath"
	"testing"

	"ringfence.dev/ringfence/internal/doctor"
)

// host writes the files that the checks read.
func host(t *testing.T, files map[string]string) doctor.Host {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return doctor.Host{Root: root, DataDir: root}
}

func good() map[string]string {
	files := map[string]string{
		"/proc/sys/kernel/osrelease": "6.1.0-18-amd64", "/proc/sys/user/max_user_namespaces": "65536",
		"/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids", "/proc/sys/kernel/pid_max": "4194304",
		"/proc/sys/kernel/threads-max": "192000", "/proc/sys/vm/max_map_count": "4194304", "/proc/self/cgroup": "0::/system.slice/ringfence.service",
		"/sys/fs/cgroup/system.slice/ringfence.service/pids.max": "max", "/dev/net/tun": "", "/proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 12000000 kB",
	}
	for _, ns := range []string{"user", "pid", "net", "mnt", "ipc", "uts"} {
		files["/proc/self/ns/"+ns] = ""
	}
	return files
}

// Each fault of a host is found under its name and comes with what to do.
func TestFindings(t *testing.T) {
	level := func(files map[string]string, check string) doctor.Finding {
		t.Helper()
		for _, f := range doctor.Check(host(t, files)) {
			if f.Check == check {
				return f
			}
		}
		t.Fatalf("there is no check %q", check)
		return doctor.Finding{}
	}
	for _, c := range []struct {
		check, path, text string // path missing when text is "-"
		want              doctor.Level
	}{
		{"kernel", "/proc/sys/kernel/osrelease", "4.19.0", doctor.Failure},
		{"namespaces", "/proc/sys/user/max_user_namespaces", "0", doctor.Failure},
		{"namespaces", "/proc/self/ns/user", "-", doctor.Failure},
		{"control groups", "/sys/fs/cgroup/cgroup.controllers", "cpu pids", doctor.Failure},
		{"control groups", "/sys/fs/cgroup/cgroup.controllers", "-", doctor.Failure},
		{"process numbers", "/proc/sys/kernel/pid_max", "32768", doctor.Warning},
		{"threads", "/proc/sys/kernel/threads-max", "10000", doctor.Warning},
		{"tasks of a service", "/sys/fs/cgroup/system.slice/ringfence.service/pids.max", "4915", doctor.Warning},
		{"memory maps", "/proc/sys/vm/max_map_count", "65530", doctor.Warning},
		{"network devices", "/dev/net/tun", "-", doctor.Failure},
		{"memory", "/proc/meminfo", "MemAvailable: 500000 kB", doctor.Failure},
	} {
		if f := level(good(), c.check); f.Level != doctor.OK || f.Fix != "" {
			t.Errorf("%s of a good host: %+v", c.check, f)
		}
		files := good()
		if files[c.path] = c.text; c.text == "-" {
			delete(files, c.path)
		}
		if f := level(files, c.check); f.Level != c.want || f.Fix == "" || f.Detail == "" {
			t.Errorf("%s with %s %q: %+v, want %s", c.check, c.path, c.text, f, c.want)
		}
	}
}
