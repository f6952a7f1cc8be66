// Package config is what an operator can set: from a flag, else the environment,
// else a TOML file, else a default. One table, Keys, holds all of it.
package config

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"ringfence.dev/ringfence"
)

// DefaultFile is read when it exists and no other file is named.
const DefaultFile = "/etc/ringfence/ringfence.toml"

// Config is the configuration of `ringfence serve`.
type Config struct {
	Listen      string // host:port
	DataDir     string
	TemplateDir string // "": templates in DataDir
	Driver      string // gvisor or fake

	MaxVCPU          int
	MaxMemoryMiB     int64
	MaxDiskMiB       int64
	MaxProcs         int
	MemoryReserveMiB int64
	QueueSeconds     int
	MaxSnapshotsMiB  int64

	// Of each project; 0: no limit.
	QuotaSandboxes int
	QuotaVCPU      int
	QuotaMemoryMiB int64
	QuotaDiskMiB   int64
	QuotaSnapshots int
	QuotaCreates   int // a second

	Pool    []string // NAME=N
	PoolMax int

	OpenNetworks  []string // closed networks that sandboxes may reach
	DNSServers    []string // host:port; none: those of /etc/resolv.conf
	UpstreamProxy string   // URL; "": none
	CABundle      string   // file; "": what a template trusts
	MaxFlows      int      // of one sandbox at a time
	MaxFlowRate   int      // new ones a second
	MaxDNSRate    int      // lookups a second
	MaxNetworkMB  int64    // MB/s each way; 0: no limit

	HostNames  []string
	Domain     string
	MaxBodyMiB int64
	TLSCert    string
	TLSKey     string

	SuperserveListen string // host:port; "": none

	LogFormat string // text or json
	LogLevel  string // debug, info, warn, error
	Debug     bool   // profiles on a port of their own on loopback
}

// Key is one thing that can be set: as a flag with dashes, as RINGFENCE_NAME in the
// environment, and under its name in the file.
type Key struct {
	Name    string
	Default string
	Usage   string // one sentence: what it does, its unit and range
	Hidden  bool
	set     func(*Config, string) error
	get     func(*Config) string
}

// Flag is the key's name as a flag, without the dashes before it.
func (k Key) Flag() string { return strings.ReplaceAll(k.Name, "_", "-") }

// Env is the key's name in the environment.
func (k Key) Env() string { return "RINGFENCE_" + strings.ToUpper(k.Name) }

// IsBool reports whether the flag needs no value.
func (k Key) IsBool() bool { return k.Default == "false" }

// Keys is everything that can be set, in the order of the documentation.
var Keys = []Key{
	text("listen", "127.0.0.1:7070", "address that the API listens on, as host:port", func(c *Config) *string { return &c.Listen }),
	text("data_dir", "/var/lib/ringfence", "directory for the database, the sandboxes and, unless template_dir is set, the templates; only its owner may enter it", func(c *Config) *string { return &c.DataDir }),
	text("template_dir", "", "directory of the built templates; empty: `templates` in data_dir", func(c *Config) *string { return &c.TemplateDir }),
	hidden(text("driver", "gvisor", "what isolates a sandbox: gvisor, or fake for tests of clients (no isolation at all)", func(c *Config) *string { return &c.Driver })),
	number("max_vcpu", "0", "largest number of cores of one sandbox; 0: the host's", func(c *Config) *int { return &c.MaxVCPU }),
	number("max_memory_mib", "0", "largest memory of one sandbox, in MiB; 0: three quarters of the host's", func(c *Config) *int64 { return &c.MaxMemoryMiB }),
	number("max_disk_mib", "65536", "largest disk of one sandbox, in MiB", func(c *Config) *int64 { return &c.MaxDiskMiB }),
	number("max_procs", "1024", "largest number of processes in one sandbox", func(c *Config) *int { return &c.MaxProcs }),
	number("memory_reserve_mib", "0", "memory of the host that sandboxes never get, in MiB: a create that would eat it is refused; 0: a tenth of the host's, at least 512", func(c *Config) *int64 { return &c.MemoryReserveMiB }),
	number("queue_seconds", "5", "how long a create or resume waits for memory of the host before it is refused, in seconds; 0: not at all", func(c *Config) *int { return &c.QueueSeconds }),
	list("open_networks", "private networks and addresses that sandboxes may reach like public ones, separated by commas; a sandbox's own policy still applies", func(c *Config) *[]string { return &c.OpenNetworks }),
	list("dns_servers", "resolvers for the names that sandboxes look up, as address or address:port, separated by commas; empty: those of the host's /etc/resolv.conf", func(c *Config) *[]string { return &c.DNSServers }),
	number("max_snapshots_mib", "0", "what all snapshots and paused sandboxes together may take on the disk, in MiB: a pause or snapshot beyond it is refused; 0: half of what is free in data_dir at the start", func(c *Config) *int64 { return &c.MaxSnapshotsMiB }),
	number("max_flows", "1024", "connections of one sandbox to the outside at a time; one more is refused", func(c *Config) *int { return &c.MaxFlows }),
	number("max_flow_rate", "250", "new connections of one sandbox a second, twice that in one burst", func(c *Config) *int { return &c.MaxFlowRate }),
	number("max_dns_rate", "200", "lookups of one sandbox a second, twice that in one burst", func(c *Config) *int { return &c.MaxDNSRate }),
	number("max_network_mb", "0", "megabytes a second that one sandbox may send, and receive; 0: no limit", func(c *Config) *int64 { return &c.MaxNetworkMB }),
	text("upstream_proxy", "", "proxy through which sandboxes reach the outside, as http://[user:password@]host:port or https://…, which is checked by ca_bundle too; programs find the gateway in http_proxy and https_proxy, and those that do not look there go through it as well; none sees it or its password", func(c *Config) *string { return &c.UpstreamProxy }),
	text("ca_bundle", "", "file with the certificates, in PEM, that sandboxes trust in place of their template's, for networks that re-sign TLS; the host's own is often `/etc/ssl/certs/ca-certificates.crt`", func(c *Config) *string { return &c.CABundle }),
	number("quota_sandboxes", "0", "sandboxes that one project may have, paused ones among them; 0: no limit", func(c *Config) *int { return &c.QuotaSandboxes }),
	number("quota_vcpu", "0", "cores that the sandboxes of one project may have together, without paused ones; 0: no limit", func(c *Config) *int { return &c.QuotaVCPU }),
	number("quota_memory_mib", "0", "memory that the sandboxes of one project may have together, without paused ones, in MiB; 0: no limit", func(c *Config) *int64 { return &c.QuotaMemoryMiB }),
	number("quota_disk_mib", "0", "disk that the sandboxes of one project may have together, paused ones among them, in MiB; 0: no limit", func(c *Config) *int64 { return &c.QuotaDiskMiB }),
	number("quota_snapshots", "0", "snapshots that one project may have; 0: no limit", func(c *Config) *int { return &c.QuotaSnapshots }),
	number("quota_creates_per_second", "0", "sandboxes that one project may create a second, and as many in one burst; a fork counts as one; 0: no limit", func(c *Config) *int { return &c.QuotaCreates }),
	list("pool", "templates of which sandboxes wait to be claimed, each as NAME=N, separated by commas; in the template's own size", func(c *Config) *[]string { return &c.Pool }),
	number("pool_max", "0", "up to how many sandboxes wait of each template and size, as many as were made in the last 30 seconds; 0: only what pool says", func(c *Config) *int { return &c.PoolMax }),
	list("host_names", "names by which clients reach this server beside its own address, separated by commas; a request for another name is refused", func(c *Config) *[]string { return &c.HostNames }),
	text("domain", "", "domain below which each port of a sandbox has a host name of its own, `<port>-<sandbox id>.<domain>`; its wildcard name has to lead to this server", func(c *Config) *string { return &c.Domain }),
	number("max_body_mib", "32", "largest JSON body of a request, in MiB; files are not bound by it", func(c *Config) *int64 { return &c.MaxBodyMiB }),
	text("tls_cert", "", "file with the TLS certificate chain in PEM; with tls_key, the API speaks HTTPS", func(c *Config) *string { return &c.TLSCert }),
	text("tls_key", "", "file with the certificate's private key in PEM", func(c *Config) *string { return &c.TLSKey }),
	text("superserve_listen", "", "address that the host names which Superserve's SDKs have built in are served on with TLS, as host:port, for the preload of Python programs; empty: none", func(c *Config) *string { return &c.SuperserveListen }),
	text("log_format", "text", "text or json; the log goes to stderr", func(c *Config) *string { return &c.LogFormat }),
	text("log_level", "info", "debug, info, warn or error", func(c *Config) *string { return &c.LogLevel }),
	hidden(boolean("debug", "serve profiles on a port of its own on loopback, named at the start", func(c *Config) *bool { return &c.Debug })),
}

// Source looks one key up; ok is false when it does not set it.
type Source func(Key) (value string, ok bool)

// Environment is the source that reads RINGFENCE_ variables. An empty one counts as unset.
func Environment(k Key) (string, bool) {
	v := os.Getenv(k.Env())
	return v, v != ""
}

// Default returns the configuration of a server that nobody configured.
func Default() *Config {
	c := new(Config)
	for _, k := range Keys {
		if err := k.set(c, k.Default); err != nil {
			panic("config: the default of " + k.Name + ": " + err.Error())
		}
	}
	return c
}

// Load takes each key from the first source that sets it, else the file at path,
// else its default, and validates the whole. An empty path means DefaultFile if that
// exists. All problems are reported at once, each with the name of its key.
func Load(path string, sources ...Source) (*Config, error) {
	file, err := readFile(path)
	if err != nil {
		return nil, err
	}
	c := Default()
	var problems []error
	for _, k := range Keys {
		for _, source := range append(sources, file) {
			value, ok := source(k)
			if !ok {
				continue
			}
			if err := k.set(c, value); err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", k.Name, err))
			}
			break
		}
	}
	problems = append(problems, c.Validate())
	if err := errors.Join(problems...); err != nil {
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "cannot use the configuration: %s", oneLine(err))
	}
	c.complete()
	return c, nil
}

// Validate returns all that is wrong, one line each.
func (c *Config) Validate() error {
	var problems []error
	bad := func(key, format string, args ...any) {
		problems = append(problems, fmt.Errorf(key+": "+format, args...))
	}
	for _, l := range []struct{ key, value string }{{"listen", c.Listen}, {"superserve_listen", c.SuperserveListen}} {
		if l.value == "" && l.key != "listen" {
			continue
		}
		if _, port, err := net.SplitHostPort(l.value); err != nil {
			bad(l.key, "%q is not host:port", l.value)
		} else if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
			bad(l.key, "%q is not a port from 0 to 65535", port)
		}
	}
	if c.DataDir == "" {
		bad("data_dir", "it is empty")
	}
	if c.Driver != "gvisor" && c.Driver != "fake" {
		bad("driver", "%q is none of gvisor, fake", c.Driver)
	}
	for _, r := range []struct {
		key             string
		value, min, max int64
		zero            bool // 0 has a meaning of its own
	}{
		{"max_vcpu", int64(c.MaxVCPU), 1, 1024, true},
		{"max_memory_mib", c.MaxMemoryMiB, ringfence.MinMemoryMiB, 1 << 24, true},
		{"max_disk_mib", c.MaxDiskMiB, ringfence.MinDiskMiB, 1 << 24, false},
		{"max_procs", int64(c.MaxProcs), 16, 32768, false},
		{"memory_reserve_mib", c.MemoryReserveMiB, 1, 1 << 24, true},
		{"queue_seconds", int64(c.QueueSeconds), 0, 300, true},
		{"pool_max", int64(c.PoolMax), 0, 10_000, true},
		{"max_snapshots_mib", c.MaxSnapshotsMiB, 1, 1 << 30, true},
		{"quota_sandboxes", int64(c.QuotaSandboxes), 0, 1 << 20, true},
		{"quota_vcpu", int64(c.QuotaVCPU), 0, 1 << 20, true},
		{"quota_memory_mib", c.QuotaMemoryMiB, 0, 1 << 40, true},
		{"quota_disk_mib", c.QuotaDiskMiB, 0, 1 << 40, true},
		{"quota_snapshots", int64(c.QuotaSnapshots), 0, 1 << 20, true},
		{"quota_creates_per_second", int64(c.QuotaCreates), 0, 1 << 20, true},
		{"max_body_mib", c.MaxBodyMiB, 1, 1024, false},
		{"max_flows", int64(c.MaxFlows), 1, 65536, false},
		{"max_flow_rate", int64(c.MaxFlowRate), 1, 100000, false},
		{"max_dns_rate", int64(c.MaxDNSRate), 1, 100000, false},
		{"max_network_mb", c.MaxNetworkMB, 0, 100000, true},
	} {
		if inRange := r.min <= r.value && r.value <= r.max; !inRange && (r.value != 0 || !r.zero) {
			or := ""
			if r.zero {
				or = ", nor 0"
			}
			bad(r.key, "%d is not from %d to %d%s", r.value, r.min, r.max, or)
		}
	}
	if _, err := c.Open(); err != nil {
		bad("open_networks", "%v", err)
	}
	if _, err := c.Resolvers(); err != nil {
		bad("dns_servers", "%v", err)
	}
	if _, err := c.PoolSizes(); err != nil {
		bad("pool", "%s", err)
	}
	if _, err := c.Proxy(); err != nil {
		bad("upstream_proxy", "%v", err)
	}
	for _, name := range c.HostNames {
		if strings.ContainsAny(name, "/: ") && net.ParseIP(strings.Trim(name, "[]")) == nil {
			bad("host_names", "%q is no host name; leave scheme and port out", name)
		}
	}
	if c.Domain != "" && !validDomain(c.Domain) {
		bad("domain", "%q is no domain name in lower case; leave scheme, port and *. out", c.Domain)
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		bad("tls_cert", "tls_cert and tls_key go together")
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		bad("log_format", "%q is none of text, json", c.LogFormat)
	}
	switch c.LogLevel {
	case "debug", "info", "warn", "error":
	default:
		bad("log_level", "%q is none of debug, info, warn, error", c.LogLevel)
	}
	return errors.Join(problems...)
}

// PoolSizes reads Pool.
func (c *Config) PoolSizes() (map[string]int, error) {
	sizes := map[string]int{}
	for _, entry := range c.Pool {
		name, count, _ := strings.Cut(entry, "=")
		n, err := strconv.Atoi(count)
		if err != nil || name == "" || n < 0 || n > 10_000 {
			return nil, fmt.Errorf("%q is not NAME=N with N from 0 to 10000", entry)
		}
		sizes[name] = n
	}
	return sizes, nil
}

// complete puts in what depends on the host and on other keys.
func (c *Config) complete() {
	if c.TemplateDir == "" {
		c.TemplateDir = filepath.Join(c.DataDir, "templates")
	}
	if c.MaxVCPU == 0 {
		c.MaxVCPU = runtime.NumCPU()
	}
	total := hostMemoryMiB()
	if c.MaxMemoryMiB == 0 {
		c.MaxMemoryMiB = max(total*3/4, ringfence.MinMemoryMiB)
	}
	if c.MemoryReserveMiB == 0 {
		c.MemoryReserveMiB = max(total/10, 512)
	}
}

// validDomain reports whether a name of a port fits below it as DNS has it.
func validDomain(name string) bool {
	const longest = len("65535-abcdefghij0123456789.")
	if len(name)+longest > 253 || net.ParseIP(name) != nil {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "-") != label ||
			strings.ContainsFunc(label, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }) {
			return false
		}
	}
	return true
}

// Loopback reports whether an address to listen on can be reached from this host alone.
func (c *Config) Loopback() bool {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// oneLine joins what errors.Join put on lines of their own: a terminal is shown a line feed escaped.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
