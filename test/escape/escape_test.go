package escape

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/driver/drivertest"
	"ringfence.dev/ringfence/internal/driver/gvisor"
	"ringfence.dev/ringfence/internal/egress"
	"ringfence.dev/ringfence/internal/gateway"
	"ringfence.dev/ringfence/internal/guestbin"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
	"ringfence.dev/ringfence/internal/testenv"
)

func TestMain(m *testing.M) {
	gvisor.MaybeRunsc()
	os.Exit(m.Run())
}

//go:embed probes.py
var probes []byte

// Who tries. The agent's rights are those of PID 1: what it cannot do holds even
// when the agent has been taken over.
const (
	asUser  = "user"
	asRoot  = "root"
	asAgent = "agent"
)

// table is every probe, and who must be refused. Only what is inside the sandbox's
// own walls is left to the agent.
var table = map[string][]string{
	"host_file_by_path":             {asUser, asRoot, asAgent},
	"host_file_above_root":          {asUser, asRoot, asAgent},
	"host_file_through_any_process": {asUser, asRoot, asAgent},
	"host_file_by_handle":           {asUser, asRoot, asAgent},
	"host_paths_in_mounts":          {asUser, asRoot, asAgent},
	"write_agent_image":             {asUser, asRoot, asAgent},
	"host_process_listed":           {asUser, asRoot, asAgent},
	"host_process_signalled":        {asUser, asRoot, asAgent},
	"host_process_traced":           {asUser, asRoot, asAgent},
	"host_process_memory":           {asUser, asRoot, asAgent},
	"daemon_environment":            {asUser, asRoot, asAgent},
	"agent_listed":                  {asUser, asRoot},
	"agent_pipes_written":           {asUser, asRoot},
	"agent_traced":                  {asUser, asRoot},
	"sysrq":                         {asUser, asRoot, asAgent},
	"kernel_memory":                 {asUser, asRoot, asAgent},
	"kernel_symbols":                {asUser, asRoot, asAgent},
	"kernel_log":                    {asUser, asRoot, asAgent},
	"kernel_settings":               {asUser, asRoot, asAgent},
	"kernel_identity":               {asUser, asRoot, asAgent},
	"sys_tree":                      {asUser, asRoot, asAgent},
	"sys_written":                   {asUser, asRoot},
	"modules_loaded":                {asUser, asRoot, asAgent},
	"kernel_replaced":               {asUser, asRoot, asAgent},
	"kernel_programmed":             {asUser, asRoot, asAgent},
	"hardware_ports":                {asUser, asRoot, asAgent},
	"host_clock":                    {asUser, asRoot, asAgent},
	"swap_and_accounting":           {asUser, asRoot, asAgent},
	"devices_present":               {asUser, asRoot, asAgent},
	"devices_made":                  {asUser, asRoot, asAgent},
	"host_mounted":                  {asUser, asRoot, asAgent},
	"sentry_files_mounted":          {asUser, asRoot, asAgent},
	"mounted_at_all":                {asUser, asRoot},
	"unmounted":                     {asUser, asRoot},
	"raw_sockets":                   {asUser, asRoot, asAgent},
	"host_socket_families":          {asUser, asRoot, asAgent},
	"interfaces":                    {asUser, asRoot, asAgent},
	"host_ports":                    {asUser, asRoot, asAgent},
	"other_addresses":               {asUser, asRoot, asAgent},
	"host_unix_sockets":             {asUser, asRoot, asAgent},
	"other_ports":                   {asUser, asRoot, asAgent},
	"other_files":                   {asUser, asRoot, asAgent},
	"other_shared_memory":           {asUser, asRoot, asAgent},
	"other_abstract_socket":         {asUser, asRoot, asAgent},
	"other_processes":               {asUser, asRoot, asAgent},
}

// sandbox is one of the two.
type sandbox struct {
	inst driver.Instance
	conn *guestlink.Conn
	spec driver.Spec
}

func start(t *testing.T, d driver.Driver, image string) sandbox {
	t.Helper()
	spec := driver.Spec{
		ID: ringfence.NewSandboxID(), ImagePath: image, Hostname: "inside", MaxProcs: 200,
		Size: ringfence.Size{VCPU: 2, MemoryMiB: 1024, DiskMiB: 1024},
	}
	inst, err := d.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := inst.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	})
	link, err := inst.Network(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	gate := gateway.New(gateway.Options{Log: slog.New(slog.DiscardHandler)})
	policy, err := egress.Parse(nil, []string{"0.0.0.0/0"}, nil, gate.Site())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gate.Attach(spec.ID, link, policy, new(gateway.History)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gate.Close() })
	return sandbox{inst, drivertest.Attach(t, inst, spec), spec}
}

func TestEscape(t *testing.T) {
	testenv.RequireRoot(t)
	image := testenv.RequireTemplate(t, "code-interpreter").ImagePath
	agent, err := guestbin.Agent()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	facts := prepareHost(t, dir)
	d, err := gvisor.New(gvisor.Options{Dir: dir, Agent: agent})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	attacker, other := start(t, d, image), start(t, d, image)
	prepareOther(t, other, facts)
	facts["other_disk"] = filepath.Join(dir, "sandboxes", other.spec.ID, "disk")
	facts["control_path"] = filepath.Join(dir, "sandboxes", attacker.spec.ID, "control.sock")
	put(t, attacker, "/workspace/probes.py", probes)
	const script = `exec python3 /workspace/probes.py "$(cat /workspace/facts.json)"`

	for _, who := range []string{asUser, asRoot, asAgent} {
		t.Run(who, func(t *testing.T) {
			facts["run"] = probesFor(who)
			raw, err := json.Marshal(facts)
			if err != nil {
				t.Fatal(err)
			}
			put(t, attacker, "/workspace/facts.json", raw)
			var out string
			if who == asAgent {
				status, b, err := attacker.inst.Rescue(t.Context(), []string{"/bin/sh", "-c", script})
				if err != nil || status != 0 {
					t.Fatalf("the probes ended with %d, %v: %s", status, err, b)
				}
				out = string(b)
			} else {
				r := drivertest.RunCommand(t, attacker.conn, guestproto.ProcessStart{Shell: script, User: who})
				if r.Exit.ExitCode != 0 {
					t.Fatalf("the probes ended with %+v: %s", r.Exit, r.Stderr)
				}
				out = r.Stdout
			}
			check(t, who, out)
		})
	}
	// Whatever was tried, both sandboxes and the host's things are as before.
	for name, s := range map[string]sandbox{"the attacker": attacker, "the other": other} {
		if r := drivertest.Shell(t, s.conn, "echo alive"); r.Stdout != "alive\n" {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if _, err := os.Stat(facts["secret_path"].(string)); err != nil {
		t.Error(err)
	}
}

// probesFor returns the probes that must not work for somebody.
func probesFor(who string) []string {
	var names []string
	for name, levels := range table {
		if slices.Contains(levels, who) {
			names = append(names, name)
		}
	}
	return names
}

// check holds the answers of the probes against the table.
func check(t *testing.T, who, out string) {
	t.Helper()
	seen := map[string]bool{}
	for line := range strings.Lines(out) {
		var a struct{ Probe, Verdict, Detail string }
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Errorf("cannot read %q", line)
			continue
		}
		seen[a.Probe] = true
		switch a.Verdict {
		case "blocked":
			t.Logf("%s: blocked: %s", a.Probe, a.Detail)
		case "broken":
			t.Errorf("%s: the probe is broken: %s", a.Probe, a.Detail)
		default:
			t.Errorf("%s as %s: %s: %s", a.Probe, who, a.Verdict, a.Detail)
		}
	}
	for _, name := range probesFor(who) {
		if !seen[name] {
			t.Errorf("probe %s did not run", name)
		}
	}
	if defined := bytes.Count(probes, []byte("\n@probe\n")); defined != len(table) {
		t.Errorf("there are %d probes and %d rows in the table", defined, len(table))
	}
}

func put(t *testing.T, s sandbox, path string, data []byte) {
	t.Helper()
	_, err := s.conn.WriteFile(t.Context(), guestproto.FileWrite{FilePath: guestproto.FilePath{Path: path}, Mode: 0o644}, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
}

// prepareHost puts on the host what the probes look for, and says what it is.
func prepareHost(t *testing.T, dir string) map[string]any {
	t.Helper()
	marker := "host-marker-" + ringfence.NewSandboxID()
	secret := filepath.Join(dir, marker)
	if err := os.WriteFile(secret, []byte("host secret"), 0o666); err != nil {
		t.Fatal(err)
	}
	env := ringfence.NewToken()
	t.Setenv("RINGFENCE_TEST_SECRET", env)

	proc := exec.Command("sh", "-c", "sleep 1000; : "+marker)
	proc.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	if err := proc.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Kill(-proc.Process.Pid, unix.SIGKILL)
		proc.Wait()
	})

	listen := func(network, address string) net.Listener {
		l, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	tcp := listen("tcp", "127.0.0.1:0")
	socketDir, err := os.MkdirTemp("/tmp", "rfe-") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(socketDir) })
	listen("unix", filepath.Join(socketDir, "s"))
	listen("unix", "@"+marker)

	var addresses []string
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && !ip.IP.IsLoopback() {
			addresses = append(addresses, ip.IP.String())
		}
	}
	var uname unix.Utsname
	var st unix.Stat_t
	if err := unix.Uname(&uname); err != nil {
		t.Fatal(err)
	}
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	line := func(path string) string {
		b, _ := os.ReadFile(path)
		return strings.TrimSpace(string(b))
	}
	hostname, _ := os.Hostname()
	return map[string]any{
		"marker": marker, "secret_path": secret, "data_dir": dir, "pid": proc.Process.Pid, "env": env,
		"port": tcp.Addr().(*net.TCPAddr).Port, "addresses": addresses, "abstract": marker,
		"socket_path": filepath.Join(socketDir, "s"), "hostname": hostname,
		"kernel": unix.ByteSliceToString(uname.Release[:]), "cmdline": line("/proc/cmdline"),
		"product": line("/sys/devices/virtual/dmi/id/product_name"),
		"disk":    []uint32{unix.Major(st.Dev), unix.Minor(st.Dev)},
	}
}

// otherHolder holds secrets of the other sandbox in every place that could be shared.
const otherHolder = `
import ctypes, socket, sys, time
libc = ctypes.CDLL(None)
secret = b"secret-of-the-other-sandbox"
for path in ("/root/other-secret", "/dev/shm/other-secret", "/tmp/other-secret"):
    open(path, "wb").write(secret)
assert libc.shmget(4242, 4096, 0o1666) >= 0 and libc.msgget(4242, 0o1666) >= 0 and libc.semget(4242, 1, 0o1666) >= 0
tcp = socket.create_server(("0.0.0.0", 5151))
unix = socket.socket(socket.AF_UNIX)
unix.bind("\0other-sandbox")
unix.listen()
print("ready", flush=True)
time.sleep(1000)  # other-holder
`

func prepareOther(t *testing.T, s sandbox, facts map[string]any) {
	t.Helper()
	put(t, s, "/workspace/other-holder.py", []byte(otherHolder))
	cmd := drivertest.Start(t, s.conn, guestproto.ProcessStart{Shell: "exec python3 /workspace/other-holder.py"})
	deadline := time.Now().Add(60 * time.Second)
	for !strings.Contains(cmd.Output(), "ready") {
		select {
		case <-cmd.Done():
			r, err := cmd.Finish(t.Context())
			t.Fatalf("the other sandbox: %+v, %v", r, err)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("the other sandbox is not ready")
		}
	}
	// The probes do work where they should: in the sandbox that has these things.
	r := drivertest.Shell(t, s.conn, `python3 -c 'import socket; socket.create_connection(("127.0.0.1", 5151)); print(open("/dev/shm/other-secret").read())'`)
	if r.Stdout != "secret-of-the-other-sandbox\n" {
		t.Fatalf("the other sandbox does not reach its own: %+v", r)
	}
	facts["other_port"], facts["other_file"] = 5151, "/root/other-secret"
}
