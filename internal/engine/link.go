package engine

import (
	"context"
	"fmt"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

// attach opens a session with the agent of an instance.
func attach(ctx context.Context, inst driver.Instance) (*guestlink.Conn, error) {
	pipes, err := inst.Link(ctx)
	if err != nil {
		return nil, err
	}
	return guestlink.Attach(ctx, pipes)
}

// noProxy is what a sandbox reaches without a proxy: itself.
const noProxy = "localhost,127.0.0.1,::1"

// identity is what the agent is told about its sandbox.
func (e *Engine) identity(row ringfence.Sandbox, template ringfence.Template) guestproto.Identity {
	env := make(map[string]string, len(template.Env)+len(row.Env))
	if len(e.CABundle) > 0 {
		for _, name := range caVariables {
			env[name] = caPath
		}
	}
	if e.networked() {
		if proxy := e.Gateway.ProxyURL(); proxy != "" {
			for _, name := range []string{"http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"} {
				env[name] = proxy
			}
			env["no_proxy"], env["NO_PROXY"] = noProxy, noProxy
		}
	}
	for k, v := range template.Env {
		env[k] = v
	}
	for k, v := range row.Env {
		env[k] = v
	}
	return guestproto.Identity{
		SandboxID: row.ID, Hostname: hostname(row), Env: env, User: row.User, WorkDir: row.WorkDir,
		MaxProcs: e.MaxProcs, MemoryBytes: row.Size.MemoryMiB << 20, VCPU: row.Size.VCPU, DNS: e.dns(),
	}
}

// hostname is the sandbox's id: a name may be no host name.
func hostname(row ringfence.Sandbox) string { return row.ID }

// setConn publishes a session.
func (b *box) setConn(conn *guestlink.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if end := b.ctx; end.Err() != nil {
		conn.CloseWithError(context.Cause(end))
		return
	}
	b.conn = conn
	close(b.linked)
	if b.networkNew.Swap(false) {
		b.e.wg.Go(func() { b.resetFormer(conn) })
	}
}

// dropConn takes a session back that has ended.
func (b *box) dropConn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conn = nil
	b.linked = make(chan struct{})
}

// link returns the session with the agent, and waits for one that is being opened.
func (b *box) link(ctx context.Context) (*guestlink.Conn, error) {
	var timeout <-chan time.Time
	for {
		b.mu.Lock()
		conn, linked, state, changed := b.conn, b.linked, b.row.State, b.changed
		b.mu.Unlock()
		if state == ringfence.StatePaused {
			return nil, pausedError(b.id)
		}
		if conn != nil && !isClosed(conn.Done()) {
			return conn, nil
		}
		if timeout == nil {
			timer := time.NewTimer(linkWait)
			defer timer.Stop()
			timeout = timer.C
		}
		var again <-chan time.Time
		if conn != nil {
			// It has ended, and supervise is about to see that.
			linked, again = nil, time.After(5*time.Millisecond)
		}
		select {
		case <-linked:
		case <-changed:
		case <-again:
		case <-b.ctx.Done():
			return nil, context.Cause(b.ctx)
		case <-b.e.ctx.Done():
			return nil, errClosing
		case <-ctx.Done():
			return nil, ringfence.Errorf(ringfence.CodeOf(ctx.Err()), "the sandbox did not answer in time").WithCause(context.Cause(ctx))
		case <-timeout:
			e := ringfence.Errorf(ringfence.CodeUnavailable, "the sandbox's agent does not answer").
				WithHint("try again in a moment; the sandbox ends by itself if it stays silent")
			e.RetryAfterSeconds = 5
			return nil, e
		}
	}
}

// supervise follows a running sandbox until its end is on record or the engine
// closes: it notices the end of its process, and opens its link again.
func (b *box) supervise(inst driver.Instance, quit <-chan struct{}) {
	for {
		b.mu.Lock()
		conn := b.conn
		b.mu.Unlock()
		if conn == nil {
			if !b.relink(inst, quit) {
				return
			}
			continue
		}
		select {
		case <-quit:
			return
		case <-inst.Done():
			if !isClosed(quit) {
				b.died(inst.Exit())
			}
			return
		case <-b.ctx.Done():
			return
		case <-b.e.ctx.Done():
			return
		case <-b.due:
			b.e.wg.Go(b.keepDeadlines)
		case <-conn.Done():
			if b.ctx.Err() != nil || b.e.ctx.Err() != nil || isClosed(quit) {
				return
			}
			b.e.Log.Warn("the link to a sandbox broke", "sandbox", b.id, "error", conn.Err())
			b.dropConn()
		}
	}
}

// relink opens the link again. When the agent stays silent it goes in by the second
// way, and when that does not help either, the sandbox has failed. false: the
// sandbox or the engine has ended, or quit was closed.
func (b *box) relink(inst driver.Instance, quit <-chan struct{}) bool {
	deadline := time.Now().Add(agentLostAfter)
	diagnosis := "nothing is known about it"
	for attempt := 1; ; attempt++ {
		ctx, cancel := context.WithTimeout(b.e.ctx, 10*time.Second)
		stop := context.AfterFunc(b.ctx, cancel)
		go func() {
			select {
			case <-quit:
				cancel()
			case <-ctx.Done():
			}
		}()
		conn, err := attach(ctx, inst)
		if err == nil {
			err = b.resume(ctx, conn)
		}
		stop()
		cancel()
		switch {
		case b.ctx.Err() != nil || b.e.ctx.Err() != nil || isClosed(quit):
			if conn != nil {
				conn.Close() // it was never used
			}
			return false
		case err == nil:
			b.setConn(conn)
			return true
		case isClosed(inst.Done()):
			b.died(inst.Exit())
			return false
		}
		b.e.Log.Warn("cannot open the link to a sandbox", "sandbox", b.id, "attempt", attempt, "error", err)
		if conn != nil {
			conn.Close() // it did not work
		}
		if attempt == 1 {
			diagnosis = b.rescue(inst)
		}
		if time.Now().After(deadline) {
			b.end(ringfence.StateFailed, ringfence.ReasonAgentLost,
				fmt.Sprintf("its agent did not answer for %v; %s", agentLostAfter, diagnosis))
			return false
		}
		select {
		case <-time.After(time.Second):
		case <-quit:
			return false
		case <-inst.Done():
		case <-b.ctx.Done():
			return false
		case <-b.e.ctx.Done():
			return false
		}
	}
}

// endAbandoned kills the commands that a former session left running with an agent from
// before deadlines were told to it: nobody could keep them.
// A command of this process that will be followed again is left alone.
func (b *box) endAbandoned(ctx context.Context, conn *guestlink.Conn) error {
	processes, err := conn.Processes(ctx)
	if err != nil {
		return err
	}
	for _, p := range processes {
		if _, followed := b.commands.Load(p.ID); followed || p.Exit != nil {
			continue
		}
		b.e.Log.Info("ending a command that nobody waits for", "sandbox", b.id, "command", p.ID)
		if err := conn.Kill(ctx, guestproto.ProcessKill{ID: p.ID, Signal: sigkill, Tree: true}); err != nil {
			return err
		}
	}
	return nil
}

const sigkill = 9

// rescue looks at a sandbox whose agent is silent by the driver's second way, and
// gives the agent back what may have been taken from it: the right to run.
func (b *box) rescue(inst driver.Instance) string {
	if !b.e.Driver.Capabilities().Rescue {
		return "there is no second way into it"
	}
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	status, output, err := inst.Rescue(ctx, []string{"/bin/sh", "-c", "kill -CONT 1; cat /proc/1/status"})
	b.e.Log.Warn("looked at a silent sandbox by the second way", "sandbox", b.id, "status", status, "output", string(output), "error", err)
	if err != nil {
		return "the second way in does not answer either"
	}
	return "the second way in answers, so the sandbox runs and its agent is stuck"
}

// probe asks a silent agent for a sign of life while calls wait for it, and breaks
// the link when there is none; supervise then opens it again.
func (b *box) probe(conn *guestlink.Conn) {
	defer b.ping.Store(false)
	ctx, cancel := context.WithTimeout(b.ctx, 20*time.Second)
	defer cancel()
	if _, err := conn.Ping(ctx); err != nil && ctx.Err() == context.DeadlineExceeded {
		conn.CloseWithError(ringfence.Errorf(ringfence.CodeUnavailable, "the sandbox's agent does not answer"))
	}
}
