package template

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"time"

	"ringfence.dev/ringfence"
)

// Options say what to build and where to.
type Options struct {
	// Recipe is the name or an alias of a built-in template, or the path of a recipe's
	// directory: ".", an absolute path, or one that starts with ./ or ../.
	Recipe string
	// Dir is the template directory; it is made when missing.
	Dir string
	// Progress is told what happens, line by line; a terminal is redrawn. Nil: nobody.
	Progress io.Writer
	// Environ is where proxies, CA bundles and settings of pip and npm are taken from,
	// as NAME=value. Nil: the environment of this process.
	Environ []string
	// Rebuild makes the template even when one of the same content is there.
	Rebuild bool
}

// Result is what Build made or found.
type Result struct {
	Template  ringfence.Template
	Reused    bool // a template of the same content was there
	ImageSize int64
	Took      time.Duration
}

// Build makes the template of a recipe, and before it those that it is based on, or
// finds that one of the same content is there. It needs root. When it fails, or when
// ctx ends, nothing of the build remains; what a killed build left is removed by the
// next one. Of two builds of one template at once the second waits for the first.
//
// The error has CodeTemplateNotFound for an unknown name, CodeInvalidArgument for a
// bad recipe, CodeFailedPrecondition when the host lacks something, and is or wraps
// a *StepError when a program of the build failed.
func Build(ctx context.Context, o Options) (Result, error) {
	recipe, err := Load(o.Recipe)
	if err != nil {
		return Result{}, err
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return Result{}, err
	}
	b := &builder{store: Store{Dir: dir}, host: thisHost(o.Environ), progress: newProgress(o.Progress), rebuild: o.Rebuild}
	return b.build(ctx, recipe)
}

type builder struct {
	store    Store
	host     host
	progress *progress
	rebuild  bool
}

func (b *builder) build(ctx context.Context, r *Recipe) (Result, error) {
	began := time.Now()
	key, err := b.store.Key(r)
	if err != nil {
		return Result{}, err
	}
	if res, ok := b.find(r, key); ok && !b.rebuild {
		res.Took = time.Since(began)
		b.progress.say("%s: up to date (%s)", r.Name, describe(res))
		return res, nil
	}
	if os.Geteuid() != 0 {
		return Result{}, ringfence.Errorf(ringfence.CodeFailedPrecondition, "cannot build template %q: building needs root", r.Name).
			WithHint("run it again with sudo")
	}
	if err := b.tools(r); err != nil {
		return Result{}, err
	}
	for _, d := range []string{"images", "locks", "build"} {
		if err := os.MkdirAll(filepath.Join(b.store.Dir, d), 0o755); err != nil {
			return Result{}, fmt.Errorf("cannot make the template directory: %w", err)
		}
	}
	unlock, err := lockSlowly(ctx, filepath.Join(b.store.Dir, "locks", r.Name), func() {
		b.progress.say("%s: waiting for another build of it to end", r.Name)
	})
	if err != nil {
		return Result{}, err
	}
	defer unlock()
	if res, ok := b.find(r, key); ok && !b.rebuild {
		res.Took = time.Since(began)
		b.progress.say("%s: another build has just made it (%s)", r.Name, describe(res))
		return res, nil
	}

	var base *ringfence.Template
	if r.Base.Template != "" {
		t, err := b.base(ctx, r.Base.Template)
		if err != nil {
			return Result{}, err
		}
		base = &t
	}
	res, err := b.make(ctx, r, key, base)
	if err != nil {
		if ctx.Err() != nil {
			return Result{}, ringfence.Errorf(ringfence.CodeCanceled, "the build of template %q was interrupted; nothing of it remains", r.Name)
		}
		return Result{}, fmt.Errorf("cannot build template %q: %w", r.Name, err)
	}
	res.Took = time.Since(began)
	b.progress.say("%s: built (%s) in %.0f s", r.Name, describe(res), res.Took.Seconds())
	return res, nil
}

// find returns the template when its record has that key and its image is whole.
func (b *builder) find(r *Recipe, key string) (Result, bool) {
	t, err := b.store.read(r.Name + ".json")
	if err != nil || t.Recipe != key {
		return Result{}, false
	}
	info, err := os.Stat(t.ImagePath)
	if err != nil || info.Size() == 0 {
		return Result{}, false
	}
	return Result{Template: t, Reused: true, ImageSize: info.Size()}, true
}

// base returns the template that a recipe starts from, built now if need be.
func (b *builder) base(ctx context.Context, name string) (ringfence.Template, error) {
	r, err := Load(name)
	if ringfence.CodeOf(err) == ringfence.CodeTemplateNotFound {
		return b.store.Lookup(name)
	}
	if err != nil {
		return ringfence.Template{}, err
	}
	// A base is never rebuilt by force: its own key says whether it is right.
	res, err := (&builder{store: b.store, host: b.host, progress: b.progress}).build(ctx, r)
	return res.Template, err
}

// tools says what the host lacks, for r and for the bases that are built on the way.
func (b *builder) tools(r *Recipe) error {
	names := []string{"mkfs.erofs"}
	for cur := r; cur != nil; {
		if cur.Base.Debian != "" {
			names = append(names, "mmdebstrap")
			break
		}
		next, err := Load(cur.Base.Template)
		if err != nil {
			break // a template of this host: there already
		}
		cur = next
	}
	packages := map[string]string{"mkfs.erofs": "erofs-utils", "mmdebstrap": "mmdebstrap"}
	missing := needTools(names...)
	if len(missing) == 0 {
		return nil
	}
	what, install := "", ""
	for i, m := range missing {
		if i > 0 {
			what += " and "
		}
		what += m
		install += " " + packages[m]
	}
	return ringfence.Errorf(ringfence.CodeFailedPrecondition, "cannot build template %q: this host has no %s", r.Name, what).
		WithHint("on Debian and Ubuntu: apt-get install%s", install)
}

// make builds r in a directory of its own and puts image and record in place.
func (b *builder) make(ctx context.Context, r *Recipe, key string, base *ringfence.Template) (res Result, err error) {
	builds := filepath.Join(b.store.Dir, "build")
	stale, _ := filepath.Glob(filepath.Join(builds, r.Name+"@*"))
	for _, dir := range stale { // the lock is ours, so whoever made it is gone
		if err := os.RemoveAll(dir); err != nil {
			return Result{}, fmt.Errorf("cannot remove what a former build left: %w", err)
		}
	}
	dir, err := os.MkdirTemp(builds, r.Name+"@")
	if err != nil {
		return Result{}, err
	}
	clean := func(func(string)) error {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("cannot remove the build directory: %w", err)
		}
		return nil
	}
	defer func() { err = errors.Join(err, clean(nil)) }()

	t := &tree{recipe: r, dir: dir, root: filepath.Join(dir, "root"), tmp: filepath.Join(dir, "tmp")}
	t.inherit(base)
	if err := errors.Join(os.Mkdir(t.root, 0o755), os.Mkdir(t.tmp, 0o755), os.Chmod(t.tmp, os.ModeSticky|0o777)); err != nil {
		return Result{}, err
	}
	if t.clients, err = b.host.lend(filepath.Join(dir, "clients")); err != nil {
		return Result{}, err
	}
	image := filepath.Join(dir, "image")
	var hash string
	stages := append(t.stages(base), stage{"make the image", func(ctx context.Context, line func(string)) error {
		if err := t.finish(); err != nil {
			return err
		}
		hash, err = pack(ctx, t.root, image, line)
		return err
	}})
	for i, s := range stages {
		err := b.progress.step(i+1, len(stages)+1, r.Name+": "+s.title, func(line func(string)) error { return s.run(ctx, line) })
		if err != nil {
			return Result{}, err
		}
	}
	info, err := os.Stat(image)
	if err != nil {
		return Result{}, err
	}
	made := ringfence.Template{
		Name: r.Name, Aliases: r.Aliases, Image: hash, ImagePath: b.store.ImagePath(hash), Env: t.env, User: t.user,
		WorkDir: t.workDir, Ready: t.ready, Size: t.size, Recipe: key, BuiltAt: time.Now(),
	}
	if err := b.publish(image, made, r.Summary); err != nil {
		return Result{}, err
	}
	if err := b.progress.step(len(stages)+1, len(stages)+1, r.Name+": clean up", clean); err != nil {
		return Result{}, err
	}
	return Result{Template: made, ImageSize: info.Size()}, nil
}

// publish moves the image and then the record into place.
func (b *builder) publish(image string, t ringfence.Template, summary string) error {
	unlock, err := lockFile(filepath.Join(b.store.Dir, "images", ".lock"), true) // against Prune
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.Chmod(image, 0o444); err != nil {
		return err
	}
	if err := os.Rename(image, t.ImagePath); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(t.ImagePath)); err != nil {
		return err
	}
	return b.store.write(t, summary)
}

// inherit sets how sandboxes start: as the recipe says, else as its base does.
func (t *tree) inherit(base *ringfence.Template) {
	r := t.recipe
	t.env = map[string]string{}
	t.user, t.workDir = "root", "/"
	t.size = ringfence.Size{VCPU: ringfence.DefaultVCPU, MemoryMiB: ringfence.DefaultMemoryMiB, DiskMiB: ringfence.DefaultDiskMiB}
	if base != nil {
		maps.Copy(t.env, base.Env)
		t.user, t.workDir, t.ready, t.size = base.User, base.WorkDir, base.Ready, base.Size
	}
	maps.Copy(t.env, r.Env)
	if r.User != "" {
		t.user = r.User
	}
	if r.WorkDir != "" {
		t.workDir = r.WorkDir
	}
	if r.Ready != "" {
		t.ready = r.Ready
	}
	if r.Size.VCPU > 0 {
		t.size.VCPU = r.Size.VCPU
	}
	if r.Size.MemoryMiB > 0 {
		t.size.MemoryMiB = r.Size.MemoryMiB
	}
	if r.Size.DiskMiB > 0 {
		t.size.DiskMiB = r.Size.DiskMiB
	}
}

func describe(r Result) string {
	return fmt.Sprintf("%.2f GB, image %.12s", float64(r.ImageSize)/1e9, r.Template.Image)
}
