package template

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// clients is what the host lends a build so that it can reach package sources as
// the host does: a CA bundle, proxies, and where pip, npm and apt look. It is a list
// of what may pass; nothing else of the host's environment or files does, and the
// values that hold a path of the host are set to the lent copy.
type clients struct {
	env     []string // for every step
	proxies []string // the part of env that tools on the host need too
	apt     []string // apt options, as "Name \"value\";"
	sources []string // apt source lines in place of Debian's own; none: those
}

// proxyNames are given in lower and in upper case.
var proxyNames = []string{"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"}

// caNames name a CA bundle, in the environment of a host and of a step.
var caNames = []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "npm_config_cafile"}

var systemBundles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}

var (
	pipKeys = []string{"index-url", "extra-index-url", "trusted-host", "find-links", "no-index", "timeout", "retries", "proxy"}
	npmKeys = []string{"registry", "proxy", "https-proxy", "noproxy", "strict-ssl"}
)

// host is where clients are gathered from; tests put others in.
type host struct {
	environ []string
	root    string // prefix of the system's files
	apt     func() (string, error)
}

func thisHost(environ []string) host {
	if environ == nil {
		environ = os.Environ()
	}
	return host{environ: environ, root: "/", apt: aptConfig}
}

func aptConfig() (string, error) {
	path, err := lookPath("apt-config", []string{"PATH=" + toolPath})
	if err != nil {
		return "", nil // not a Debian host
	}
	cmd := exec.Command(path, "dump")
	cmd.Env = []string{"PATH=" + toolPath, "LC_ALL=C.UTF-8"}
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("cannot read apt's configuration: %w", err)
	}
	return string(out), nil
}

func (h host) getenv(name string) string {
	for _, e := range slices.Backward(h.environ) {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

func (h host) read(path string) string {
	if path == "" {
		return ""
	}
	data, _ := os.ReadFile(filepath.Join(h.root, path))
	return string(data)
}

// lend writes the files that steps will see in clientDir to dir, and returns the rest.
func (h host) lend(dir string) (clients, error) {
	var c clients
	for _, name := range proxyNames {
		for _, n := range []string{name, strings.ToUpper(name)} {
			if v := h.getenv(n); v != "" {
				c.proxies = append(c.proxies, n+"="+v)
			}
		}
	}
	c.env = append(c.env, c.proxies...)

	home := h.getenv("HOME")
	pip := iniValues(h.read("/etc/pip.conf"), h.read("/etc/xdg/pip/pip.conf"),
		h.read(filepath.Join(home, ".pip/pip.conf")), h.read(filepath.Join(home, ".config/pip/pip.conf")), h.read(h.getenv("PIP_CONFIG_FILE")))
	npm := iniValues(h.read("/etc/npmrc"), h.read(filepath.Join(home, ".npmrc")), h.read(h.getenv("NPM_CONFIG_USERCONFIG")))

	bundles := []string{pip["cert"], npm["cafile"]}
	for _, name := range caNames {
		bundles = append(bundles, h.getenv(name))
	}
	files := map[string]string{}
	if pem := h.certificates(append(bundles, systemBundles...)); pem != "" {
		files["ca.pem"] = pem
		for _, name := range caNames {
			c.env = append(c.env, name+"="+clientDir+"/ca.pem")
		}
	}

	var b strings.Builder
	b.WriteString("[global]\n")
	for _, k := range pipKeys {
		v := pip[k]
		if env := h.getenv("PIP_" + strings.ToUpper(strings.ReplaceAll(k, "-", "_"))); env != "" {
			v = env
		}
		if k == "find-links" && !strings.Contains(v, "://") {
			continue // a directory of the host, which a step does not see
		}
		if v != "" {
			fmt.Fprintf(&b, "%s = %s\n", k, strings.Join(strings.Fields(v), "\n    "))
		}
	}
	files["pip.conf"] = b.String()
	c.env = append(c.env, "PIP_CONFIG_FILE="+clientDir+"/pip.conf")

	b.Reset()
	for _, k := range slices.Sorted(maps.Keys(npm)) {
		if slices.Contains(npmKeys, k) || strings.HasPrefix(k, "@") && strings.HasSuffix(k, ":registry") {
			fmt.Fprintf(&b, "%s=%s\n", k, npm[k])
		}
	}
	files["npmrc"] = b.String()
	c.env = append(c.env, "NPM_CONFIG_GLOBALCONFIG="+clientDir+"/npmrc")
	if v := h.getenv("npm_config_registry") + h.getenv("NPM_CONFIG_REGISTRY"); v != "" {
		c.env = append(c.env, "npm_config_registry="+v)
	}

	if err := h.lendApt(&c, files); err != nil {
		return c, err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return c, err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return c, err
		}
	}
	return c, nil
}

// lendApt takes over how apt reaches its sources, and on a Debian host which they are.
func (h host) lendApt(c *clients, files map[string]string) error {
	dump, err := h.apt()
	if err != nil {
		return err
	}
	inside := []string{
		`APT::Sandbox::User "root";`, `APT::Install-Recommends "false";`, `Acquire::Languages "none";`,
		`Dpkg::Options:: "--force-unsafe-io";`, `Dpkg::Options:: "--force-confdef";`, `Dpkg::Use-Pty "false";`,
	}
	if files["ca.pem"] != "" {
		inside = append(inside, `Acquire::https::CaInfo "`+clientDir+`/ca.pem";`)
	}
	for line := range strings.Lines(dump) {
		line = strings.TrimSpace(line)
		name, value, _ := strings.Cut(line, " ")
		low := strings.ToLower(name)
		reach := strings.HasPrefix(low, "acquire::http::") || strings.HasPrefix(low, "acquire::https::") || strings.HasPrefix(low, "acquire::ftp::") ||
			slices.Contains([]string{"acquire::retries", "acquire::forceipv4", "acquire::forceipv6", "acquire::check-valid-until", "acquire::check-date"}, low)
		if !reach || value == `"";` {
			continue
		}
		switch low[strings.LastIndex(low, ":")+1:] {
		case "sslcert", "sslkey", "proxy-auto-detect", "proxyautodetect":
			continue // files and programs of the host
		case "cainfo":
			c.apt = append(c.apt, line)
			continue // in there it is the lent bundle
		}
		c.apt = append(c.apt, line)
		inside = append(inside, line)
	}
	c.sources = h.debianSources()
	if len(c.sources) > 0 {
		inside = append(inside, `Dir::Etc::sourcelist "`+clientDir+`/sources.list";`, `Dir::Etc::sourceparts "-";`)
	}
	files["apt.conf"] = strings.Join(inside, "\n") + "\n"
	c.env = append(c.env, "APT_CONFIG="+clientDir+"/apt.conf")
	return nil
}

// certificates returns the distinct certificates of the PEM files at paths.
func (h host) certificates(paths []string) string {
	var out bytes.Buffer
	seenPath, seen := map[string]bool{}, map[string]bool{}
	for _, p := range paths {
		if p == "" || seenPath[p] {
			continue
		}
		seenPath[p] = true
		rest := []byte(h.read(p))
		for {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			if block.Type == "CERTIFICATE" && !seen[string(block.Bytes)] {
				seen[string(block.Bytes)] = true
				pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes})
			}
		}
	}
	return out.String()
}

// iniValues returns the keys of all sections in texts; later ones win.
func iniValues(texts ...string) map[string]string {
	out := map[string]string{}
	for _, text := range texts {
		last := ""
		for line := range strings.Lines(text) {
			trimmed := strings.TrimSpace(line)
			if trimmed == "" || trimmed[0] == '#' || trimmed[0] == ';' || trimmed[0] == '[' {
				last = ""
				continue
			}
			if last != "" && (line[0] == ' ' || line[0] == '\t') { // goes on from the line before
				out[last] = strings.TrimSpace(out[last] + "\n" + trimmed)
				continue
			}
			k, v, ok := strings.Cut(trimmed, "=")
			if !ok {
				continue
			}
			last = strings.TrimSpace(k)
			out[last] = strings.Trim(strings.TrimSpace(v), `"`)
		}
	}
	return out
}
