package engine

import (
	"strings"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

// watchRetry is when a link is waited for again that did not open in time.
const watchRetry = time.Second

// changed puts a change of a file on record, if it succeeded.
func (e *Engine) changed(f FileRef, err *error, t ringfence.EventType, data map[string]any) {
	if *err != nil {
		return
	}
	data["path"] = f.Path
	if f.User != "" {
		data["user"] = f.User
	}
	e.emit(f.Project, f.Sandbox, t, data)
}

// processStarted puts the start of a process on record.
func (b *box) processStarted(p ringfence.Process) {
	command := p.Command
	if command == "" {
		command = strings.Join(p.Args, " ")
	}
	b.emit(ringfence.EventProcessStarted, map[string]any{"process": p.ID, "pid": p.PID, "command": cut(command, ringfence.MaxEventCommand), "tag": p.Tag})
}

// processEnded puts its end on record.
func (b *box) processEnded(id string, end ringfence.ProcessEnd) {
	b.emit(ringfence.EventProcessEnded, map[string]any{"process": id, "exit_code": end.ExitCode, "signal": end.Signal, "reason": string(end.Reason)})
}

// watchEnd puts the end of a process on record that nobody follows, over as many links
// as it takes.
func (b *box) watchEnd(id string) {
	if _, watched := b.watched.LoadOrStore(id, nil); watched {
		return
	}
	b.e.wg.Go(func() {
		defer b.watched.Delete(id)
		for {
			conn, err := b.link(b.ctx)
			switch {
			case b.ctx.Err() != nil || b.e.ctx.Err() != nil:
				return
			case err != nil:
				select {
				case <-time.After(watchRetry):
				case <-b.ctx.Done():
				case <-b.e.ctx.Done():
				}
				continue
			case !conn.HasProcesses():
				return
			}
			info, err := conn.WaitFor(b.ctx, guestproto.ProcessRef{ID: id})
			if err == nil {
				if info.Exit != nil {
					b.processEnded(id, endOf(*info.Exit))
				}
				return
			}
			if !isClosed(conn.Done()) {
				return // the agent knows it no more
			}
		}
	})
}
