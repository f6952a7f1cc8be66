package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
	"ringfence.dev/ringfence/internal/snapshot"
)

// goldenRetry is how long a golden snapshot that could not be made, or not be used, is
// left alone.
const goldenRetry = time.Minute

// A golden snapshot waits until nobody has used a sandbox for goldenQuiet, or for goldenLatest.
const (
	goldenQuiet  = 400 * time.Millisecond
	goldenLatest = 5 * time.Second
)

// maxGolden bounds the golden snapshots; those made first go first.
const maxGolden = 32

// goldens makes the snapshots that new sandboxes start from, each when its template is
// first used in a size.
type goldens struct {
	mu     sync.Mutex
	making map[string]bool      // guarded by mu
	failed map[string]time.Time // guarded by mu
	one    chan struct{}        // holds a token while one is made

	// objects is held for reading while an object has a user that no record names yet,
	// and for writing while those without one are removed.
	objects sync.RWMutex
}

func (g *goldens) init() {
	g.making, g.failed, g.one = map[string]bool{}, map[string]time.Time{}, make(chan struct{}, 1)
}

// spec is what the driver is told about a sandbox.
func (e *Engine) spec(id string, template ringfence.Template, size ringfence.Size) driver.Spec {
	return driver.Spec{ID: id, ImagePath: template.ImagePath, Hostname: id, Size: size, MaxProcs: e.MaxProcs}
}

// goldenKey names the golden snapshot of a template in a size; "" where there is none.
// Everything that the snapshot depends on is in it, so that none is ever out of date.
func (e *Engine) goldenKey(template ringfence.Template, size ringfence.Size) string {
	caps := e.Driver.Capabilities()
	if e.ColdBoot || e.Snapshots == nil || !caps.Checkpoint {
		return ""
	}
	raw, err := json.Marshal([]any{caps.Build, template.Image, template.ImagePath, template.User, template.Ready, size, e.MaxProcs})
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// launch starts the instance of a sandbox and attaches to its agent: from the golden
// snapshot of its template where there is one that works, else from the image. With an
// object it is restored from that and nothing else. booted: its ready command has not run. started is called as soon as there is an instance, and again when another one takes its place.
func (e *Engine) launch(ctx context.Context, spec driver.Spec, template ringfence.Template, object string, started func(driver.Instance)) (conn *guestlink.Conn, booted bool, err error) {
	if object != "" {
		inst, err := e.restoreObject(ctx, spec, object)
		if err != nil {
			return nil, false, err
		}
		started(inst)
		e.at("launch.started")
		conn, err = attach(ctx, inst)
		return conn, false, err
	}
	key := e.goldenKey(template, spec.Size)
	if inst, err := e.restoreGolden(ctx, key, spec); inst != nil || err != nil {
		if err == nil {
			started(inst)
			e.at("launch.started")
			if conn, err = attach(ctx, inst); err == nil {
				return conn, false, nil
			}
			started(nil)
			err = errors.Join(err, inst.Kill(context.WithoutCancel(ctx)))
		}
		if ctx.Err() != nil {
			return nil, false, err
		}
		e.Log.Warn("cannot restore a golden snapshot; booting the image instead", "template", template.Name, "sandbox", spec.ID, "error", err)
		e.dropGolden(key)
	}
	inst, err := e.Driver.Create(ctx, spec)
	if err != nil {
		return nil, false, err
	}
	started(inst)
	e.at("launch.started")
	conn, err = attach(ctx, inst)
	return conn, true, err
}

func (e *Engine) restoreObject(ctx context.Context, spec driver.Spec, object string) (driver.Instance, error) {
	e.goldens.objects.RLock()
	defer e.goldens.objects.RUnlock()
	return e.Driver.Restore(ctx, spec, e.Snapshots.Path(object))
}

// restoreGolden restores what is kept under a key; nil and no error where nothing is.
func (e *Engine) restoreGolden(ctx context.Context, key string, spec driver.Spec) (driver.Instance, error) {
	e.goldens.objects.RLock()
	defer e.goldens.objects.RUnlock()
	g, ok := e.golden(key)
	if !ok {
		return nil, nil
	}
	return e.Driver.Restore(ctx, spec, e.Snapshots.Path(g.Object))
}

func (e *Engine) golden(key string) (snapshot.Golden, bool) {
	if key == "" {
		return snapshot.Golden{}, false
	}
	return e.Snapshots.Golden(key)
}

// dropGolden takes a golden snapshot that does not work out of use.
func (e *Engine) dropGolden(key string) {
	e.goldens.mu.Lock()
	e.goldens.failed[key] = time.Now()
	e.goldens.mu.Unlock()
	if err := e.Snapshots.DropGolden(key); err != nil {
		e.Log.Warn("cannot drop a golden snapshot", "error", err)
	}
	e.collectSnapshots()
}

// wantGolden makes the golden snapshot of a template in a size in the background,
// unless there is one.
func (e *Engine) wantGolden(template ringfence.Template, size ringfence.Size) {
	key := e.goldenKey(template, size)
	if _, ok := e.golden(key); ok || key == "" {
		return
	}
	g := &e.goldens
	g.mu.Lock()
	busy := g.making[key] || time.Since(g.failed[key]) < goldenRetry
	if !busy {
		g.making[key] = true
	}
	g.mu.Unlock()
	if busy {
		return
	}
	e.wg.Go(func() {
		e.awaitIdle()
		began := time.Now()
		err := e.makeGolden(key, template, size)
		g.mu.Lock()
		delete(g.making, key)
		if err != nil {
			g.failed[key] = time.Now()
		}
		g.mu.Unlock()
		switch {
		case e.ctx.Err() != nil:
		case err != nil:
			e.Log.Warn("cannot make a golden snapshot; sandboxes boot from the image", "template", template.Name, "error", err)
		default:
			e.Log.Info("made a golden snapshot", "template", template.Name, "vcpu", size.VCPU, "memory_mib", size.MemoryMiB,
				"disk_mib", size.DiskMiB, "took", time.Since(began).Round(time.Millisecond))
		}
	})
}

// awaitIdle returns when nobody has created a sandbox or called one for a moment, so that a
// golden snapshot is not made beside the first create of its template and what it is for;
// or when that has not come for a while.
func (e *Engine) awaitIdle() {
	tick := time.NewTicker(goldenQuiet / 8)
	defer tick.Stop()
	latest := time.After(goldenLatest)
	for quiet := time.Now(); time.Since(quiet) < goldenQuiet; {
		select {
		case <-tick.C:
			if e.busy() {
				quiet = time.Now()
			}
		case <-latest:
			return
		case <-e.ctx.Done():
			return
		}
	}
}

// busy reports whether a sandbox is being created or used.
func (e *Engine) busy() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.starting > 0 {
		return true
	}
	for _, b := range e.live {
		if b.calls.Load() > 0 {
			return true
		}
	}
	return false
}

// makeGolden boots a sandbox that nobody owns, saves it when its agent is ready, and
// ends it. It has no name, no environment and no token: what is in the snapshot is in
// every sandbox of the template.
func (e *Engine) makeGolden(key string, template ringfence.Template, size ringfence.Size) (err error) {
	select {
	case e.goldens.one <- struct{}{}:
	case <-e.ctx.Done():
		return errClosing
	}
	defer func() { <-e.goldens.one }()
	done, err := e.reserve(size)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(e.ctx, startDeadline+readyDeadline)
	defer cancel()
	spec := e.spec(ringfence.NewSandboxID(), template, size)
	spec.Hostname = ""
	inst, err := e.Driver.Create(ctx, spec)
	if err != nil {
		return err
	}
	defer func() {
		kill, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), killDeadline)
		defer cancel()
		err = errors.Join(err, inst.Kill(kill))
	}()
	conn, err := attach(ctx, inst)
	if err != nil {
		return err
	}
	defer conn.Close() // Freeze has closed it, unless it failed
	if err := e.warm(ctx, conn, inst, template, size); err != nil {
		return err
	}
	err = e.save(ctx, conn, inst, func(object string) error {
		return e.Snapshots.SetGolden(key, snapshot.Golden{
			Object: object, Template: template.Name, Build: e.Driver.Capabilities().Build, MadeAt: now(),
		})
	})
	e.collectSnapshots()
	return err
}

// warm does once what every sandbox would do first.
func (e *Engine) warm(ctx context.Context, conn *guestlink.Conn, inst driver.Instance, template ringfence.Template, size ringfence.Size) error {
	err := conn.Identity(ctx, guestproto.Identity{
		User: template.User, WorkDir: template.WorkDir, MaxProcs: e.MaxProcs, MemoryBytes: size.MemoryMiB << 20, VCPU: size.VCPU, DNS: e.dns(),
	})
	if err != nil {
		return err
	}
	if _, err := conn.StatFile(ctx, guestproto.FilePath{Path: "/", User: template.User}); err != nil {
		return err
	}
	if err := makeReady(ctx, conn, template); err != nil {
		return err
	}
	if !e.Driver.Capabilities().Rescue {
		return nil
	}
	// By the second way, as the agent would list a command in every sandbox.
	status, output, err := inst.Rescue(ctx, []string{"/bin/sh", "-c", "true"})
	if err == nil && status != 0 {
		err = fmt.Errorf("the template's shell ended with %d: %.200q", status, output)
	}
	return err
}

// save makes a snapshot's content of a sandbox, which keep puts on record, and leaves the
// sandbox paused, its session over. When it fails nothing is lost but the snapshot.
func (e *Engine) save(ctx context.Context, conn *guestlink.Conn, inst driver.Instance, keep func(object string) error) (err error) {
	work, err := e.Snapshots.Work()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Snapshots.Discard(work)) }()
	if err := conn.Freeze(ctx); err != nil {
		return err
	}
	e.at("save.frozen")
	if err := inst.Pause(ctx); err != nil {
		return err
	}
	e.at("save.stopped")
	if err := inst.Checkpoint(ctx, work); err != nil {
		return err
	}
	e.at("save.written")
	e.goldens.objects.RLock()
	defer e.goldens.objects.RUnlock()
	object, err := e.Snapshots.Commit(work)
	if err != nil {
		return err
	}
	e.at("save.committed")
	if err := keep(object); err != nil {
		return err
	}
	e.at("save.recorded")
	return nil
}

// pruneGoldens forgets golden snapshots that no sandbox can start from any more, and the
// oldest where there are too many.
func (e *Engine) pruneGoldens() error {
	all, err := e.Snapshots.Goldens()
	if err != nil {
		return err
	}
	build := e.Driver.Capabilities().Build
	for key, g := range all {
		if g.Build != build {
			err = errors.Join(err, e.Snapshots.DropGolden(key))
			delete(all, key)
		}
	}
	for len(all) > maxGolden {
		oldest := ""
		for key, g := range all {
			if oldest == "" || g.MadeAt.Before(all[oldest].MadeAt) {
				oldest = key
			}
		}
		err = errors.Join(err, e.Snapshots.DropGolden(oldest))
		delete(all, oldest)
	}
	return err
}

// collectSnapshots removes the content that nothing refers to.
func (e *Engine) collectSnapshots() {
	if e.Snapshots == nil {
		return
	}
	e.goldens.objects.Lock()
	defer e.goldens.objects.Unlock()
	err := e.pruneGoldens()
	used := map[string]bool{}
	all, lerr := e.Snapshots.Goldens()
	kept, serr := e.Store.SnapshotObjects(context.WithoutCancel(e.ctx))
	lerr = errors.Join(lerr, serr)
	if err = errors.Join(err, lerr); lerr == nil {
		for _, g := range all {
			used[g.Object] = true
		}
		for _, object := range kept {
			used[object] = true
		}
		for object := range e.Snapshots.Objects() {
			if !used[object] {
				err = errors.Join(err, e.Snapshots.Remove(object))
			}
		}
		var left []string
		for object := range e.Snapshots.Objects() {
			left = append(left, e.Snapshots.Path(object))
		}
		err = errors.Join(err, e.Driver.Collect(left))
	}
	if err != nil {
		e.Log.Warn("cannot remove snapshots that nothing needs", "error", err)
	}
}
