package guest

import (
	"encoding/json"

	"ringfence.dev/ringfence/internal/guestproto"
)

// maxNotices is how many notices wait for a host that does not read.
const maxNotices = 256

// watcher is a host that wants to know what starts and ends.
type watcher struct {
	notices chan guestproto.ProcessNotice
	missed  int // guarded by the table's mu
}

// tell notes that a process has started or ended.
func (t *processTable) tell(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.watchers) == 0 {
		return
	}
	notice := guestproto.ProcessNotice{Process: p.info()}
	for w := range t.watchers {
		notice.Missed = w.missed
		select {
		case w.notices <- notice:
			w.missed = 0
		default:
			w.missed++
		}
	}
}

// watchProcesses says what starts and ends, until the host leaves.
func watchProcesses(a *agent, ch *channel, _ struct{}) (any, error) {
	w := &watcher{notices: make(chan guestproto.ProcessNotice, maxNotices)}
	t := a.procs
	t.mu.Lock()
	t.watchers[w] = struct{}{}
	var running []guestproto.ProcessNotice
	for _, p := range t.order {
		if !p.hasEnded() {
			running = append(running, guestproto.ProcessNotice{Process: p.info()})
		}
	}
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		delete(t.watchers, w)
		t.mu.Unlock()
	}()
	for _, n := range running {
		if err := ch.sendLine(n); err != nil {
			return nil, err
		}
	}
	for {
		select {
		case n := <-w.notices:
			if err := ch.sendLine(n); err != nil {
				return nil, err
			}
		case <-ch.done:
			return nil, errGone
		}
	}
}

func (ch *channel) sendLine(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return ch.send(append(line, '\n'))
}
