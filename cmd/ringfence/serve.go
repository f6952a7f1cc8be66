package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/api"
	"ringfence.dev/ringfence/internal/cli"
	"ringfence.dev/ringfence/internal/config"
	"ringfence.dev/ringfence/internal/datadir"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/driver/fake"
	"ringfence.dev/ringfence/internal/driver/gvisor"
	"ringfence.dev/ringfence/internal/engine"
	"ringfence.dev/ringfence/internal/guestbin"
	"ringfence.dev/ringfence/internal/snapshot"
	"ringfence.dev/ringfence/internal/sqlite"
	"ringfence.dev/ringfence/internal/template"
)

func serveCommand(*cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Start the server",
		Long: "Start the server. It runs until SIGINT or SIGTERM, then lets the requests that it has\n" +
			"begun come to their end for some seconds; a second signal ends it at once. Sandboxes go on\n" +
			"in both cases, and after SIGKILL too: the next start finds them again.\n\n" +
			"The first start makes an API key and prints it once. With " + envAPIKey + " set, the server\n" +
			"takes that key instead, at every start.",
		GroupID: "server",
		Args:    cobra.NoArgs,
	}
	load := configFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		return serve(cmd.Context(), c, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

const (
	envAPIKey = "RINGFENCE_API_KEY"
)

// drain is how long a request may go on after the first signal. Tests shorten it.
var drain = 15 * time.Second

// serve runs the server until ctx ends.
func serve(ctx context.Context, c *config.Config, out, errOut io.Writer) (err error) {
	log := newLog(c, errOut)
	slog.SetDefault(log)
	if err := datadir.Prepare(c.DataDir); err != nil {
		return err
	}
	lock, err := datadir.Acquire(c.DataDir)
	if err != nil {
		return err
	}
	defer lock.Release() // the end of the process releases it too
	var secure *tls.Config
	if c.TLSCert != "" {
		pair, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
		if err != nil {
			return ringfence.Errorf(ringfence.CodeInvalidArgument, "cannot use tls_cert and tls_key: %w", err)
		}
		secure = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	}
	// From here on a client that connects waits for the answer instead of being refused.
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return ringfence.Errorf(ringfence.CodeFailedPrecondition, "cannot listen on %s: %w", c.Listen, err).
			WithHint("is another server running? choose another address with --listen")
	}
	defer listener.Close() // the server closes it first
	store, err := sqlite.Open(ctx, databasePath(c))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	drv, templates, err := newDriver(c, log)
	if err != nil {
		return err
	}
	snapshots, err := snapshot.Open(filepath.Join(c.DataDir, "snapshots"))
	if err != nil {
		return err
	}
	ca, err := caBundle(c)
	if err != nil {
		return err
	}
	gate, err := newGateway(c, ca, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gate.Close()) }()
	poolSizes, err := c.PoolSizes()
	if err != nil {
		return err
	}
	maxSnapshots, err := maxSnapshots(c)
	if err != nil {
		return err
	}
	eng, err := engine.Open(ctx, engine.Options{
		At:    atPoint,
		Store: store, Driver: drv, Templates: templates, Log: log, Snapshots: snapshots, Gateway: engineGateway{gate}, CABundle: ca,
		Max:      ringfence.Size{VCPU: c.MaxVCPU, MemoryMiB: c.MaxMemoryMiB, DiskMiB: c.MaxDiskMiB},
		MaxProcs: c.MaxProcs, ReserveMiB: c.MemoryReserveMiB, QueueFor: time.Duration(c.QueueSeconds) * time.Second, MaxSnapshotMiB: maxSnapshots, Pool: poolSizes, PoolMax: c.PoolMax,
		Quota: engine.Quota{
			Sandboxes: c.QuotaSandboxes, VCPU: c.QuotaVCPU, MemoryMiB: c.QuotaMemoryMiB, DiskMiB: c.QuotaDiskMiB, Snapshots: c.QuotaSnapshots, Creates: c.QuotaCreates,
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, eng.Close()) }()
	key, err := firstKey(ctx, eng)
	if err != nil {
		return err
	}
	if c.Debug {
		if err := serveProfiles(ctx, log); err != nil {
			return err
		}
	}
	dialects, more, err := newDialects(c)
	if err != nil {
		return err
	}
	handler := api.New(api.Options{
		Engine: eng, Log: log, Version: version, HostNames: hostNames(c), Domain: c.Domain, MaxBody: c.MaxBodyMiB << 20, Dialects: dialects,
	})
	server := handler.HTTP()
	server.TLSConfig = secure
	announce(out, log, c, listener.Addr(), key)
	return run(ctx, server, handler.Wait, listener, more, log)
}

// run serves until ctx ends, and then lets what was begun come to its end. wait waits for
// the requests that the server does not count, which are the WebSockets; more are listeners
// that have TLS of their own.
func run(ctx context.Context, server *http.Server, wait func(context.Context) error, listener net.Listener, more []net.Listener, log *slog.Logger) error {
	requests, stopRequests := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopRequests(nil)
	server.BaseContext = func(net.Listener) context.Context { return requests }
	failed := make(chan error, 1+len(more))
	secure := server.TLSConfig != nil // Serve sets one
	for _, l := range more {
		go func() { failed <- server.Serve(l) }()
	}
	go func() {
		if secure {
			failed <- server.ServeTLS(listener, "", "")
		} else {
			failed <- server.Serve(listener)
		}
	}()
	select {
	case err := <-failed:
		return ringfence.Errorf(ringfence.CodeInternal, "cannot serve: %w", err)
	case <-ctx.Done():
	}
	log.Info("shutting down; sandboxes go on", "drain", drain)
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	if server.Shutdown(patience) == nil && wait(patience) == nil {
		return nil
	}
	// The rest is told to end: commands are killed, as their callers get no answer, and
	// sessions close.
	stopRequests(api.ErrShutdown)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	if server.Shutdown(last) != nil || wait(last) != nil {
		return server.Close()
	}
	return nil
}

// maxSnapshots is what snapshots may take on the disk, in MiB.
func maxSnapshots(c *config.Config) (int64, error) {
	if c.MaxSnapshotsMiB > 0 {
		return c.MaxSnapshotsMiB, nil
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(c.DataDir, &fs); err != nil {
		return 0, ringfence.Errorf(ringfence.CodeInternal, "cannot look at the disk of %s: %w", c.DataDir, err)
	}
	return max(int64(fs.Bavail)*fs.Bsize>>21, 1), nil
}

func databasePath(c *config.Config) string { return filepath.Join(c.DataDir, "ringfence.db") }

// newDriver returns the driver and the templates that it can use.
func newDriver(c *config.Config, log *slog.Logger) (driver.Driver, engine.Templates, error) {
	if c.Driver == "fake" {
		log.Warn("the fake driver runs no real programs and isolates nothing: it is for tests of clients")
		return fake.New(fake.Options{}), fakeTemplates{}, nil
	}
	dataDir, err := filepath.Abs(c.DataDir)
	if err != nil {
		return nil, nil, err
	}
	templateDir, err := filepath.Abs(c.TemplateDir)
	if err != nil {
		return nil, nil, err
	}
	agent, err := guestbin.Agent()
	if err != nil {
		return nil, nil, err
	}
	d, err := gvisor.New(gvisor.Options{Dir: filepath.Join(dataDir, "gvisor"), Agent: agent, Logger: log, At: atPoint})
	return d, template.Store{Dir: templateDir}, err
}

// firstKey makes sure that somebody can come in. It returns the text of a key that
// it made, "" when there was no need to.
func firstKey(ctx context.Context, eng *engine.Engine) (string, error) {
	if text := os.Getenv(envAPIKey); text != "" {
		_, err := engine.AddKey(ctx, eng.Store, ringfence.DefaultProject, "from "+envAPIKey, text)
		switch ringfence.CodeOf(err) {
		case ringfence.CodeAlreadyExists:
			return "", nil
		case ringfence.CodeInvalidArgument:
			return "", ringfence.Errorf(ringfence.CodeInvalidArgument, "cannot use %s: %w", envAPIKey, err).
				WithHint("a key is rf_ and 32 to 128 hexadecimal digits; unset it to have one made")
		}
		return "", err
	}
	if n, err := eng.Store.CountKeys(ctx); err != nil || n > 0 {
		return "", err
	}
	_, text, err := eng.CreateKey(ctx, ringfence.DefaultProject, "first")
	return text, err
}

// announce says where the server listens, and its first key.
func announce(out io.Writer, log *slog.Logger, c *config.Config, at net.Addr, key string) {
	scheme := "http"
	if c.TLSCert != "" {
		scheme = "https"
	}
	url := scheme + "://" + at.String()
	if key != "" {
		fmt.Fprintf(out, "\nThis is the API key. It is printed only now, and kept only as a hash:\n\n"+
			"  export %s=%s\n\n`ringfence key create` makes more.\n\n", envAPIKey, key)
	}
	fmt.Fprintf(out, "Ringfence listens on %s\n", url)
	log.Info("listening", "url", url, "version", version, "data_dir", c.DataDir, "driver", c.Driver, "pid", os.Getpid())
	if !c.Loopback() && c.TLSCert == "" {
		log.Warn("listening beyond loopback without TLS: API keys and all that sandboxes say can be read on the way",
			"listen", c.Listen, "hint", "set tls_cert and tls_key, or listen on 127.0.0.1 behind a proxy that speaks TLS")
	}
}

// hostNames lists the names of this server beside loopback and the address of a connection.
func hostNames(c *config.Config) []string {
	names := c.HostNames
	if host, _, err := net.SplitHostPort(c.Listen); err == nil && host != "" {
		if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
			names = append(names, host)
		}
	}
	if !c.Loopback() {
		if name, err := os.Hostname(); err == nil {
			names = append(names, name)
		}
	}
	return names
}

func newLog(c *config.Config, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // Validate has seen it
	o := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// serveProfiles serves profiles to this host, on a port of its own.
func serveProfiles(ctx context.Context, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { server.Close() }) // the process ends
	go server.Serve(listener)                         // likewise
	log.Info("serving profiles", "url", "http://"+listener.Addr().String()+"/debug/pprof/")
	return nil
}
