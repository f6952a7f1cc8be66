package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func source(values map[string]string) Source {
	return func(k Key) (string, bool) { v, ok := values[k.Name]; return v, ok }
}

func mustWrite(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ringfence.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPrecedence(t *testing.T) {
	path := mustWrite(t, "listen = '127.0.0.1:1'\nmax_vcpu = 1\nmax_disk_mib = 100\nhost_names = ['a.example', 'b.example']\ndebug = true\n")
	t.Setenv("RINGFENCE_LISTEN", "127.0.0.1:2")
	t.Setenv("RINGFENCE_MAX_VCPU", "2")
	t.Setenv("RINGFENCE_TEMPLATE_DIR", "")
	c, err := Load(path, source(map[string]string{"listen": "127.0.0.1:3"}), Environment)
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "127.0.0.1:3" || c.MaxVCPU != 2 || c.MaxDiskMiB != 100 || c.LogLevel != "info" || !c.Debug {
		t.Errorf("flag > environment > file > default gave %+v", c)
	}
	if strings.Join(c.HostNames, " ") != "a.example b.example" {
		t.Errorf("host_names: %q", c.HostNames)
	}
	if c.TemplateDir != "/var/lib/ringfence/templates" {
		t.Errorf("template_dir: %q", c.TemplateDir)
	}
	if c.MaxMemoryMiB <= 0 || c.MemoryReserveMiB < 512 {
		t.Errorf("what depends on the host: %+v", c)
	}
}

func TestLoadErrors(t *testing.T) {
	for _, tc := range []struct {
		name, file string
		flags      map[string]string
		want       []string
	}{
		{"AllAtOnce", "", map[string]string{"listen": "nonsense", "max_vcpu": "many", "max_disk_mib": "1", "log_level": "loud", "tls_cert": "x", "data_dir": "", "host_names": "https://x"},
			[]string{`listen: "nonsense"`, `max_vcpu: "many" is not a whole number`, "max_disk_mib: 1 is not from 16 to", `log_level: "loud"`, "tls_cert and tls_key go together", "data_dir: it is empty", `host_names: "https://x"`}},
		{"UnknownKeys", "lisen = 'x'\nmax_vpcu = 2\n[section]\na = 1", nil, []string{"lisen: there is no such key", "max_vpcu: there is no such key", "section: there is no such key"}},
		{"Syntax", "listen = \nmax_vcpu = 2", nil, []string{"line 1"}},
		{"Kind", "listen = [1]\nmax_vcpu = 2.5", nil, []string{"listen: ", "max_vcpu: "}},
		{"Range", "", map[string]string{"max_vcpu": "-1", "max_procs": "0"}, []string{"max_vcpu: -1 is not from 1 to 1024, nor 0", "max_procs: 0 is not from 16 to 32768"}},
		{"Driver", "", map[string]string{"driver": "docker"}, []string{`driver: "docker" is none of gvisor, fake`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Load(mustWrite(t, tc.file), source(tc.flags))
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q:\n%v", want, err)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("the error is not one line: %q", err)
			}
		})
	}
	if _, err := Load("/does/not/exist.toml"); err == nil || !strings.Contains(err.Error(), "/does/not/exist.toml") {
		t.Errorf("a named file that is missing: %v", err)
	}
}

// The documentation's table is the table of keys.
func TestDocumentation(t *testing.T) {
	doc, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, k := range Keys {
		if k.Hidden {
			continue
		}
		def := "`" + k.Default + "` "
		if k.Default == "" {
			def = ""
		}
		want = append(want, "| `"+k.Name+"` | "+def+"| "+k.Usage+" |")
	}
	_, table, _ := strings.Cut(string(doc), "|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	if table != strings.Join(want, "\n") {
		t.Errorf("docs/configuration.md does not hold this table:\n%s", strings.Join(want, "\n"))
	}
}

func TestLoopback(t *testing.T) {
	for listen, want := range map[string]bool{
		"127.0.0.1:1": true, "[::1]:1": true, "localhost:1": true, "127.8.9.1:1": true,
		"0.0.0.0:1": false, ":1": false, "[::]:1": false, "10.0.0.1:1": false, "example.com:1": false,
	} {
		if got := (&Config{Listen: listen}).Loopback(); got != want {
			t.Errorf("Loopback(%s) = %v", listen, got)
		}
	}
}
