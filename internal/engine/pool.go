package engine

import (
	"context"
	"sync"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

// demandWindow is how far back creates count as demand.
const demandWindow = 30 * time.Second

// pool keeps sandboxes ready that nobody owns yet: restored from the golden snapshot of a
// template in a size, their agents attached. Nothing of one size is ever given for another.
type pool struct {
	kick chan struct{} // holds a token when there may be something to do

	mu      sync.Mutex
	shelves map[string]*shelf // by golden key; guarded by mu
	closed  bool              // guarded by mu
}

// shelf is the pool of one template in one size.
type shelf struct {
	template ringfence.Template
	size     ringfence.Size
	ready    []*pooled
	creates  []time.Time // within demandWindow
}

// pooled is a sandbox that waits for an owner.
type pooled struct {
	id   string
	inst driver.Instance
	conn *guestlink.Conn
}

func (p *pooled) good() bool { return !isClosed(p.inst.Done()) && !isClosed(p.conn.Done()) }

func (p *pool) init() {
	p.kick, p.shelves = make(chan struct{}, 1), map[string]*shelf{}
}

func (p *pool) poke() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// shelf returns the shelf under a key, and makes it. p.mu is held.
func (p *pool) shelfLocked(key string, template ringfence.Template, size ringfence.Size) *shelf {
	s := p.shelves[key]
	if s == nil {
		s = &shelf{template: template, size: size}
		p.shelves[key] = s
	}
	return s
}

// want is how many of a shelf are to be ready: what the operator asked for, in the
// template's own size, or as many as were made lately.
func (e *Engine) want(s *shelf, at time.Time) int {
	for len(s.creates) > 0 && at.Sub(s.creates[0]) > demandWindow {
		s.creates = s.creates[1:]
	}
	n := min(len(s.creates), e.PoolMax)
	if own, err := e.size(ringfence.Size{}, s.template.Size); err == nil && own == s.size {
		n = max(n, e.Pool[s.template.Name])
	}
	return n
}

// claim takes a ready sandbox, nil when there is none, and counts the demand.
func (e *Engine) claim(template ringfence.Template, size ringfence.Size) *pooled {
	key := e.goldenKey(template, size)
	if key == "" || e.PoolMax == 0 && e.Pool[template.Name] == 0 {
		return nil
	}
	defer e.pool.poke()
	var bad []*pooled
	defer func() { e.discard(bad) }()
	e.pool.mu.Lock()
	defer e.pool.mu.Unlock()
	s := e.pool.shelfLocked(key, template, size)
	if s.creates = append(s.creates, time.Now()); len(s.creates) > 10_000 {
		s.creates = s.creates[len(s.creates)-10_000:]
	}
	for len(s.ready) > 0 {
		p := s.ready[0]
		s.ready = s.ready[1:]
		if p.good() {
			return p
		}
		bad = append(bad, p)
	}
	return nil
}

// discard ends sandboxes of the pool in the background.
func (e *Engine) discard(list []*pooled) {
	for _, p := range list {
		e.wg.Go(func() {
			p.conn.Close() // it is ended anyway
			b := &box{e: e, id: p.id, ctx: context.WithoutCancel(e.ctx)}
			b.destroy(p.inst)
		})
	}
}

// keepPool fills the pool until the engine closes, one sandbox at a time and never while
// a create is under way, and empties it then.
func (e *Engine) keepPool() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	e.openShelves()
	for {
		for e.ctx.Err() == nil && e.fillOne() {
		}
		select {
		case <-e.pool.kick:
		case <-tick.C:
			e.openShelves()
		case <-e.ctx.Done():
			e.emptyPool()
			return
		}
	}
}

// openShelves makes the shelves that the operator asked for, and closes those whose
// template was built anew.
func (e *Engine) openShelves() {
	for name, n := range e.Pool {
		template, err := e.Template(name)
		if err != nil || n == 0 {
			continue // it may be built later
		}
		size, err := e.size(ringfence.Size{}, template.Size)
		if key := e.goldenKey(template, size); err == nil && key != "" {
			e.pool.mu.Lock()
			e.pool.shelfLocked(key, template, size)
			e.pool.mu.Unlock()
		}
	}
	var old []*pooled
	e.pool.mu.Lock()
	for key, s := range e.pool.shelves {
		template, err := e.Templates.Lookup(s.template.Name)
		if err != nil || e.goldenKey(template, s.size) != key {
			old = append(old, s.ready...)
			delete(e.pool.shelves, key)
		}
	}
	e.pool.mu.Unlock()
	e.discard(old)
}

// fillOne puts one sandbox into the pool, or takes out what is bad or too many. It
// reports whether there may be more to do at once.
func (e *Engine) fillOne() bool {
	e.mu.Lock()
	busy := e.starting > 0 || e.queue.waiting.Load() > 0
	e.mu.Unlock()
	if busy {
		return false
	}
	var out []*pooled
	var key string
	var lack *shelf
	present := time.Now()
	e.pool.mu.Lock()
	for k, s := range e.pool.shelves {
		kept := s.ready[:0]
		want := e.want(s, present)
		for _, p := range s.ready {
			if p.good() && len(kept) < want {
				kept = append(kept, p)
			} else {
				out = append(out, p)
			}
		}
		s.ready = kept
		if len(s.ready) < want && lack == nil {
			key, lack = k, s
		}
		if want == 0 && len(s.creates) == 0 {
			delete(e.pool.shelves, k)
		}
	}
	e.pool.mu.Unlock()
	e.discard(out)
	if lack == nil {
		return false
	}
	if _, ok := e.golden(key); !ok {
		e.wantGolden(lack.template, lack.size)
		return false
	}
	p, err := e.restorePooled(key, lack)
	if err != nil {
		if e.ctx.Err() == nil && ringfence.CodeOf(err) != ringfence.CodeResourceExhausted {
			e.Log.Warn("cannot fill the pool", "template", lack.template.Name, "error", err)
		}
		return false
	}
	e.pool.mu.Lock()
	s := e.pool.shelves[key]
	if s != nil && !e.pool.closed {
		s.ready = append(s.ready, p)
		p = nil
		if want := e.want(s, present); len(s.ready) == want {
			e.Log.Info("the pool is full", "template", s.template.Name, "ready", want)
		}
	}
	e.pool.mu.Unlock()
	if p != nil {
		e.discard([]*pooled{p})
	}
	return true
}

// restorePooled restores a sandbox and proves that its agent answers.
func (e *Engine) restorePooled(key string, s *shelf) (p *pooled, err error) {
	done, err := e.reserve(s.size)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(e.ctx, startDeadline)
	defer cancel()
	spec := e.spec(ringfence.NewSandboxID(), s.template, s.size)
	inst, err := e.restoreGolden(ctx, key, spec)
	if err != nil || inst == nil {
		return nil, err
	}
	p = &pooled{id: spec.ID, inst: inst}
	if p.conn, err = attach(ctx, inst); err == nil {
		if _, err = p.conn.Ping(ctx); err == nil {
			return p, nil
		}
		p.conn.Close() // the first error counts
	}
	b := &box{e: e, id: p.id, ctx: context.WithoutCancel(e.ctx)}
	b.destroy(inst)
	return nil, err
}

// evictOne ends one sandbox that waits in the pool, for one that somebody waits for.
func (e *Engine) evictOne() {
	e.pool.mu.Lock()
	defer e.pool.mu.Unlock()
	for _, s := range e.pool.shelves {
		if n := len(s.ready); n > 0 {
			e.discard(s.ready[n-1:])
			s.ready = s.ready[:n-1]
			return
		}
	}
}

func (e *Engine) emptyPool() {
	var all []*pooled
	e.pool.mu.Lock()
	e.pool.closed = true
	for _, s := range e.pool.shelves {
		all = append(all, s.ready...)
		s.ready = nil
	}
	e.pool.mu.Unlock()
	e.discard(all)
}

// fromPool gives a ready sandbox to its owner: identity, policy, environment and limits
// first, then the record, so that a daemon that dies in between leaves a sandbox that no
// record knows. nil and no error: there was none, or none that worked.
func (e *Engine) fromPool(ctx context.Context, row ringfence.Sandbox, room *ticket, template ringfence.Template, checkUser bool) (*box, error) {
	for {
		p := e.claim(template, row.Size)
		if p == nil {
			return nil, nil
		}
		row.ID, row.State = p.id, ringfence.StateRunning
		b := e.newBox(row)
		b.inst, b.ticket = p.inst, room
		refused, err := b.give(ctx, p, template, checkUser)
		if err == nil {
			return b, nil
		}
		b.disconnect()
		e.discard([]*pooled{p})
		if refused || ctx.Err() != nil {
			return nil, err
		}
		e.Log.Warn("a sandbox of the pool was bad", "sandbox", p.id, "error", err)
	}
}

// give makes a sandbox of the pool its owner's. refused: the request is at fault.
func (b *box) give(ctx context.Context, p *pooled, template ringfence.Template, checkUser bool) (refused bool, err error) {
	e := b.e
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	row := b.sandbox()
	if err := b.connect(ctx, p.inst); err != nil {
		return false, err
	}
	if err := p.conn.Identity(ctx, e.identity(row, template)); err != nil {
		return false, err
	}
	if checkUser {
		_, err := p.conn.StatFile(ctx, guestproto.FilePath{Path: "/", User: row.User})
		if ringfence.CodeOf(err) == ringfence.CodeInvalidArgument {
			return true, ringfence.Errorf(ringfence.CodeInvalidArgument, "the template %s has no user %s", template.Name, quoteShort(row.User)).WithField("user")
		}
	}
	row.StartedAt = now()
	e.at("claim.identified")
	if err := e.Store.CreateSandbox(ctx, &row); err != nil {
		return true, err
	}
	b.mu.Lock()
	b.row = row
	b.mu.Unlock()
	e.at("claim.recorded")
	e.addLive(b)
	b.setConn(p.conn)
	return false, nil
}
