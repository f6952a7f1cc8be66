package gvisor

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/cpuid"
	"gvisor.dev/gvisor/runsc/version"
)

// engine is a build of the sentry with the flags that it was started with: what a
// checkpoint has to be loaded by. gVisor would load the state of another one, and crash later.
type engine struct {
	Version string
	Flags   []string
}

// thisEngine is the one that is in this program.
func thisEngine() engine { return engine{version.Version(), sentryFlags} }

// key names the engine among the copies.
func (e engine) key() string {
	sum := sha256.Sum256([]byte(e.Version + "\x00" + strings.Join(e.Flags, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// engines keeps a copy of each build of Ringfence that made a checkpoint, so that an
// upgrade strands none. A copy goes with the last checkpoint that needs it.
type engines struct {
	dir string
	mu  sync.Mutex // held while a copy is made or copies are removed
}

// collectAfter is how old an engine's last checkpoint is at least before its copy may go:
// one that is being made is on no list yet.
const collectAfter = 15 * time.Minute

func (e *engines) path(n engine) string { return filepath.Join(e.dir, n.key()) }

// keep makes sure that there is a copy of an engine, which runs as the process pid.
func (e *engines) keep(n engine, pid int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	path, present := e.path(n), time.Now()
	if err := os.Chtimes(path, present, present); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(e.dir, 0o700); err != nil {
		return err
	}
	// The file may have been replaced or removed; what runs is what counts.
	from, err := os.Open(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return fmt.Errorf("cannot keep a copy of the engine: %w", err)
	}
	defer from.Close() // it was only read
	to, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Sync(), to.Close()); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot keep a copy of the engine: %w", err), os.Remove(path+".new"))
	}
	return nil
}

// aboveGiven is above all descriptors that a sentry is given, which may take any lower number.
const aboveGiven = 100

// open returns what to start an engine from, until it is closed. The sentry starts as
// nobody, who may not walk to the copy, so that it is named by a descriptor.
func (e *engines) open(n engine) (program string, done func(), err error) {
	if n.key() == thisEngine().key() {
		return "/proc/self/exe", func() {}, nil
	}
	low, err := unix.Open(e.path(n), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, unusable("the checkpoint is of another version of gVisor, %s, whose copy is gone", n.Version)
	}
	defer unix.Close(low)
	fd, err := unix.FcntlInt(uintptr(low), unix.F_DUPFD_CLOEXEC, aboveGiven)
	if err != nil {
		return "", nil, fmt.Errorf("cannot open the copy of an engine: %w", err)
	}
	return fmt.Sprintf("/proc/self/fd/%d", fd), func() { unix.Close(fd) }, nil
}

// Collect removes the copies of engines that none of these checkpoints needs.
func (d *Driver) Collect(checkpoints []string) error {
	needed := map[string]bool{}
	for _, dir := range checkpoints {
		raw, err := os.ReadFile(filepath.Join(dir, manifestFile))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		m := new(manifest)
		if err == nil {
			err = json.Unmarshal(raw, m)
		}
		if err != nil {
			return fmt.Errorf("cannot tell which engines are needed: %w", err)
		}
		needed[m.Built.key()] = true
	}
	d.engines.mu.Lock()
	defer d.engines.mu.Unlock()
	entries, err := os.ReadDir(d.engines.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, f := range entries {
		info, ierr := f.Info()
		if ierr != nil || needed[f.Name()] || time.Since(info.ModTime()) < collectAfter {
			continue
		}
		err = errors.Join(err, os.Remove(filepath.Join(d.engines.dir, f.Name())))
	}
	return err
}

// cpuFeatures are those of this machine that a guest may have come to rely on.
var cpuFeatures = sync.OnceValue(func() []string {
	cpuid.Initialize()
	return strings.Fields(cpuid.HostFeatureSet().FlagString())
})

// checkCPU refuses a checkpoint of a processor that could do more than this one.
func checkCPU(saved []string) error {
	here := cpuFeatures()
	missing := slices.DeleteFunc(slices.Clone(saved), func(f string) bool { return slices.Contains(here, f) })
	if len(missing) == 0 {
		return nil
	}
	if len(missing) > 5 {
		missing = append(missing[:5], "…")
	}
	return unusable("the checkpoint was made on another CPU, and this one lacks %s", strings.Join(missing, ", ")).
		WithHint("restore it on a machine with such a CPU, or make a new snapshot here")
}
