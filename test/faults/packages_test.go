package faults

import (
	"os"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
	"ringfence.dev/ringfence/internal/testenv"
)

// A package comes from the index that pip asks by itself, as the tests' own packages
// do: over a policy that names its hosts, and with the certificates of this host, which
// may be those of a proxy that re-signs TLS.
func TestPackages(t *testing.T) {
	testenv.RequireTemplate(t, "code-interpreter")
	bundle := "/etc/ssl/certs/ca-certificates.crt"
	if own := os.Getenv("SSL_CERT_FILE"); own != "" {
		bundle = own
	}
	w := newWorld(t, "--ca-bundle", bundle)
	w.start()
	sb, err := w.c.Create(t.Context(), client.CreateOptions{Template: "code-interpreter", MemoryMiB: 1024, Network: &ringfence.NetworkPolicy{DenyOut: []string{"0.0.0.0/0"}}})
	if err != nil {
		t.Fatal(err)
	}
	run := func(line string) (string, int) {
		t.Helper()
		r, err := sb.Run(t.Context(), client.Command{Shell: line, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return string(r.Stdout) + string(r.Stderr), r.ExitCode
	}
	const install = "pip install --disable-pip-version-check --no-cache-dir --no-deps --retries 0 --target /tmp/lib iniconfig"
	if out, code := run(install); code == 0 {
		t.Fatalf("a package came although everything is denied: %s", out)
	}
	hosts, code := run(`python3 -c "from pip._internal.models.index import PyPI; print(PyPI.netloc, PyPI.file_storage_domain)"`)
	if code != 0 {
		t.Fatal(hosts)
	}
	if err := sb.UpdateNetwork(t.Context(), ringfence.NetworkPolicy{AllowOut: strings.Fields(hosts)}); err != nil {
		t.Fatal(err)
	}
	if out, code := run(install + " && PYTHONPATH=/tmp/lib python3 -c 'import iniconfig; print(iniconfig.__name__)'"); code != 0 || !strings.Contains(out, "iniconfig") {
		rows, _, _ := sb.NetworkLog(t.Context(), client.NetworkLogOptions{})
		t.Errorf("%d: %s\n%+v", code, out, rows)
	}
}
