package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/guestproto"
)

// CreateRequest says what sandbox to make. Zero values mean the template's.
type CreateRequest struct {
	Project   string
	Name      string
	Template  string // DefaultTemplate when empty
	Size      ringfence.Size
	Env       map[string]string
	Metadata  map[string]string
	User      string
	Deadlines ringfence.Deadlines
	// Snapshot is the id of the snapshot to start from, instead of a template. The
	// environment of the sandbox that it is of is not taken over.
	Snapshot string
	Network  ringfence.NetworkPolicy
	// IdempotencyKey names the create: another one of the same name makes nothing, and
	// gets the sandbox that the first one made. Empty: not named.
	IdempotencyKey string
	// Secret is what its caller proved who it is with. The token of a named create is
	// derived from it, so that it can be given again and is kept nowhere.
	Secret string

	print  string // of the request as it came; set by createOnce
	forked bool   // the fork has been counted against the rate of creates
}

// DefaultTemplate is what a sandbox is made of unless its creator says otherwise.
const DefaultTemplate = "code-interpreter"

// Create makes a sandbox and returns it running, with its access token, which is
// nowhere else. When it fails, or ctx ends first, nothing is left of it but a row that says why.
//
// Errors: invalid_argument and not_yet_supported (with the field), template_not_found,
// resource_exhausted (the host or the project
// has no room, try again later), permission_denied (more than the project may ever have), sandbox_ended (somebody killed it while it
// started), unavailable and internal (it did not start).
func (e *Engine) Create(ctx context.Context, req CreateRequest) (*ringfence.Sandbox, string, error) {
	if req.IdempotencyKey == "" {
		return e.create(ctx, req)
	}
	return e.createOnce(ctx, req)
}

func (e *Engine) create(ctx context.Context, req CreateRequest) (*ringfence.Sandbox, string, error) {
	if err := req.validate(); err != nil {
		return nil, "", err
	}
	if _, err := e.parsePolicy(req.Network); err != nil {
		return nil, "", err
	}
	if err := e.validDeadlines(req.Deadlines); err != nil {
		return nil, "", err
	}
	template, object, err := e.source(ctx, &req)
	if err != nil {
		return nil, "", err
	}
	size := req.Size
	if !req.forked {
		if err := e.admitCreate(req.Project); err != nil {
			return nil, "", err
		}
	}
	room, err := e.quota(req.Project, size)
	if err != nil {
		return nil, "", err
	}
	defer e.giveBack(room)
	done, err := e.awaitRoom(ctx, size)
	if err != nil {
		return nil, "", err
	}
	defer done()

	token := req.token()
	row := ringfence.Sandbox{
		IdempotencyKey: req.IdempotencyKey, Fingerprint: req.fingerprint(),
		ID: ringfence.NewSandboxID(), Project: req.Project, Name: req.Name, Template: template.Name,
		ImagePath: template.ImagePath, BaseEnv: template.Env, Deadlines: req.Deadlines,
		State: ringfence.StateStarting, Size: size, Env: req.Env, Metadata: req.Metadata,
		User: req.User, WorkDir: template.WorkDir, Network: req.Network,
		CreatedAt: now(), Generation: 1, TokenHash: ringfence.HashSecret(token),
	}
	if row.User == "" {
		row.User = template.User
	}
	row.ExpiresAt = row.Deadlines.Expires(row.CreatedAt)
	if object == "" {
		b, err := e.fromPool(ctx, row, room, template, req.User != "")
		if err != nil {
			return nil, "", err
		}
		if b != nil {
			row = b.sandbox()
			b.emit(ringfence.EventCreated, map[string]any{"template": row.Template, "name": row.Name})
			b.emit(ringfence.EventStarted, nil)
			b.arm()
			b.follow(b.inst)
			e.Log.Info("sandbox started", "sandbox", b.id, "template", row.Template, "from", "pool", "took", now().Sub(row.CreatedAt).Round(time.Millisecond))
			return &row, token, nil
		}
	}
	if row.Deadlines.OnTimeout == ringfence.OnTimeoutPause {
		row.ExpiresAt = time.Time{} // a start cannot be paused: the time begins when it runs
	}
	if err := e.Store.CreateSandbox(ctx, &row); err != nil {
		return nil, "", err
	}
	b := e.admit(row, room)
	b.emit(ringfence.EventCreated, map[string]any{"template": row.Template, "name": row.Name})
	b.creating = true
	b.arm()
	e.at("create.recorded")
	if err := b.start(ctx, template, object, req.User != ""); err != nil {
		return nil, "", b.undo(ctx, err)
	}
	b.mu.Lock()
	b.creating = false
	row, inst := b.row, b.inst
	b.mu.Unlock()
	if b.ctx.Err() != nil { // an end came in the moment after the start
		b.release()
		return nil, "", context.Cause(b.ctx)
	}
	b.arm() // it is idle from now on
	b.follow(inst)
	if object == "" {
		e.wantGolden(template, size)
	}
	e.Log.Info("sandbox started", "sandbox", b.id, "template", row.Template, "took", row.StartedAt.Sub(row.CreatedAt).Round(time.Millisecond))
	return &row, token, nil
}

// source finds what a sandbox is made of, and completes the request's size. object is
// the content to restore when that is a snapshot.
func (e *Engine) source(ctx context.Context, req *CreateRequest) (template ringfence.Template, object string, err error) {
	if req.Snapshot == "" {
		if req.Template == "" {
			req.Template = DefaultTemplate
		}
		if template, err = e.Template(req.Template); err != nil {
			return template, "", err
		}
		req.Size, err = e.size(req.Size, template.Size)
		return template, "", err
	}
	if req.Template != "" {
		return template, "", invalid("template", "template and snapshot cannot both be given")
	}
	sn, err := e.GetSnapshot(ctx, req.Project, req.Snapshot)
	if err != nil {
		return template, "", err
	}
	for _, f := range []struct {
		field     string
		got, want int64
	}{
		{"vcpu", int64(req.Size.VCPU), int64(sn.Size.VCPU)}, {"memory_mib", req.Size.MemoryMiB, sn.Size.MemoryMiB}, {"disk_mib", req.Size.DiskMiB, sn.Size.DiskMiB},
	} {
		if f.got != 0 && f.got != f.want {
			return template, "", invalid(f.field, "%s is %d; the snapshot's is %d, and a sandbox that starts from it has the same", f.field, f.got, f.want).
				WithHint("leave %s out", f.field)
		}
	}
	req.Size = sn.Size
	return ringfence.Template{
		Name: sn.Template, ImagePath: sn.ImagePath, Env: sn.BaseEnv, User: sn.User, WorkDir: sn.WorkDir, Size: sn.Size,
	}, sn.Object, nil
}

// start brings a sandbox up until it is running and on record as such.
func (b *box) start(ctx context.Context, template ringfence.Template, object string, checkUser bool) error {
	within := startDeadline
	if template.Ready != "" && object == "" {
		within += readyDeadline
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	// Whoever ends the sandbox, or the engine, interrupts its start.
	defer context.AfterFunc(b.ctx, cancel)()
	defer context.AfterFunc(b.e.ctx, cancel)()
	row := b.sandbox()
	conn, booted, err := b.e.launch(ctx, b.e.spec(b.id, template, row.Size), template, object, func(inst driver.Instance) {
		b.mu.Lock()
		b.inst = inst
		b.mu.Unlock()
	})
	if err != nil {
		return err
	}
	b.mu.Lock()
	inst := b.inst
	b.mu.Unlock()
	b.e.at("create.attached")
	if err := b.connect(ctx, inst); err != nil {
		conn.Close() // the first error counts
		return err
	}
	if err := b.e.trust(ctx, conn); err != nil {
		conn.Close() // the first error counts
		return err
	}
	if err := conn.Identity(ctx, b.e.identity(row, template)); err != nil {
		conn.Close() // the first error counts
		return err
	}
	if booted {
		if err := makeReady(ctx, conn, template); err != nil {
			conn.Close() // the first error counts
			return err
		}
	}
	if checkUser {
		// Nothing else asks whether the template has this user before the first command.
		_, err := conn.StatFile(ctx, guestproto.FilePath{Path: "/", User: row.User})
		if ringfence.CodeOf(err) == ringfence.CodeInvalidArgument {
			conn.Close() // the first error counts
			return ringfence.Errorf(ringfence.CodeInvalidArgument, "the template %s has no user %s", template.Name, quoteShort(row.User)).WithField("user")
		}
	}
	b.e.at("create.identified")
	b.moveMu.Lock()
	defer b.moveMu.Unlock()
	if err := errors.Join(b.ctx.Err(), ctx.Err()); err != nil {
		conn.Close() // the first error counts
		return err
	}
	row = b.sandbox() // its deadlines may have been changed
	expires := row.ExpiresAt
	if row.Deadlines.OnTimeout == ringfence.OnTimeoutPause {
		expires = row.Deadlines.Expires(now())
	}
	if err := b.moveWith(ringfence.Move{To: ringfence.StateRunning, ExpiresAt: expires}); err != nil {
		conn.Close() // the first error counts
		return err
	}
	b.setConn(conn)
	b.e.at("create.running")
	b.emit(ringfence.EventStarted, nil)
	return nil
}

// undo takes back a start that failed, and returns what the caller should know.
func (b *box) undo(ctx context.Context, err error) error {
	why := err
	var own *ringfence.Error
	switch {
	case b.ctx.Err() != nil: // it was ended while it started
		why = context.Cause(b.ctx)
	case b.e.ctx.Err() != nil:
		why = errClosing
	case ctx.Err() != nil:
		why = ringfence.Errorf(ringfence.CodeOf(ctx.Err()), "the sandbox was not made: its caller went away").WithCause(err)
	case errors.Is(err, context.DeadlineExceeded):
		why = ringfence.Errorf(ringfence.CodeUnavailable, "the sandbox did not start within %v", startDeadline).
			WithHint("is the host overloaded? see the server's log").WithCause(err)
	case errors.As(err, &own):
	default:
		why = ringfence.Errorf(ringfence.CodeInternal, "cannot start the sandbox").
			WithHint("the server's log says more").WithCause(err)
	}
	b.e.Log.Warn("sandbox did not start", "sandbox", b.id, "error", err)
	detail := "it did not start"
	if errors.As(why, &own) {
		detail = own.Message
	}
	if rerr := b.record(ringfence.StateFailed, ringfence.ReasonStartFailed, detail); rerr != nil {
		b.e.Log.Error("cannot record the end of a sandbox", "sandbox", b.id, "error", rerr)
	}
	b.mu.Lock()
	b.creating = false
	b.mu.Unlock()
	b.release()
	return why
}

// size fills what the request left open from the template, within the operator's maxima.
func (e *Engine) size(asked, def ringfence.Size) (ringfence.Size, error) {
	vcpu, err := oneSize("vcpu", int64(asked.VCPU), int64(def.VCPU), ringfence.DefaultVCPU, 1, int64(e.Max.VCPU), "")
	if err != nil {
		return asked, err
	}
	asked.VCPU = int(vcpu)
	if asked.MemoryMiB, err = oneSize("memory_mib", asked.MemoryMiB, def.MemoryMiB, ringfence.DefaultMemoryMiB, ringfence.MinMemoryMiB, e.Max.MemoryMiB, " MiB"); err != nil {
		return asked, err
	}
	asked.DiskMiB, err = oneSize("disk_mib", asked.DiskMiB, def.DiskMiB, ringfence.DefaultDiskMiB, ringfence.MinDiskMiB, e.Max.DiskMiB, " MiB")
	return asked, err
}

func oneSize(field string, asked, template, def, least, most int64, unit string) (int64, error) {
	if asked == 0 {
		if template == 0 {
			template = def
		}
		// A host that is smaller than the template's wish gives what it has.
		return min(template, most), nil
	}
	if asked < least || asked > most {
		return 0, ringfence.Errorf(ringfence.CodeInvalidArgument, "%s is %d; it has to be from %d to %d%s", field, asked, least, most, unit).
			WithField(field).WithHint("the operator sets the maximum, as max_%s", field)
	}
	return asked, nil
}

// quoteShort quotes what a caller sent, and cuts it.
func quoteShort(s string) string {
	if len(s) > 80 {
		return fmt.Sprintf("%q…", s[:80])
	}
	return fmt.Sprintf("%q", s)
}
