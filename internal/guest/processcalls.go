package guest

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	"ringfence.dev/ringfence/internal/guestproto"
)

func startProcess(a *agent, ch *channel, ps guestproto.ProcessStart) (any, error) {
	p, err := a.launch(ch, ps)
	if err != nil {
		return nil, err
	}
	if ps.Stdin || ps.PTY != nil {
		go p.feed(ch)
	}
	return p.follow(ch, 0, false)
}

// spawnProcess starts a process that nobody follows yet.
func spawnProcess(a *agent, _ *channel, ps guestproto.ProcessStart) (any, error) {
	p, err := a.launch(nil, ps)
	if err != nil {
		return nil, err
	}
	return p.info(), nil
}

// launch starts a process whose output ch, unless nil, holds back.
func (a *agent) launch(ch *channel, ps guestproto.ProcessStart) (*process, error) {
	if !validID(ps.ID) {
		return nil, fail(codeInvalid, "id", "a process's id is 1 to 64 of [A-Za-z0-9_-]")
	}
	given := 0
	if ps.Shell != "" {
		given++
	}
	if len(ps.Args) > 0 {
		given++
	}
	if given > 1 || given == 0 && ps.PTY == nil {
		return nil, fail(codeInvalid, "command", "a process has either a shell command or arguments")
	}
	if ps.PTY != nil && (ps.PTY.Cols == 0 || ps.PTY.Rows == 0) {
		return nil, fail(codeInvalid, "pty", "a terminal has at least one column and one row")
	}
	if err := a.procs.reserve(ps.ID); err != nil {
		return nil, err
	}
	p, err := a.start(ch, ps)
	if err != nil {
		a.procs.add(ps.ID, nil)
	}
	return p, err
}

func attachProcess(a *agent, ch *channel, at guestproto.ProcessAttach) (any, error) {
	p, err := a.procs.find(at.ID)
	if err != nil {
		return nil, err
	}
	if at.Hold {
		p.log.holdFrom(ch, at.From)
	}
	go p.feed(ch)
	return p.follow(ch, at.From, at.NoFollow)
}

// follow sends a process's output and returns its exit.
func (p *process) follow(ch *channel, from uint64, once bool) (any, error) {
	return p.log.follow(ch, from, once, func(from uint64) error {
		info := p.info()
		return ch.event(guestproto.ProcessStarted{ID: p.id, PID: p.inner, From: from, Info: &info})
	})
}

func validID(id string) bool {
	if id == "" || len(id) > 64 {
		return false
	}
	for _, c := range []byte(id) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

func listProcesses(a *agent, _ *channel, _ struct{}) (any, error) {
	infos := []guestproto.ProcessInfo{}
	size := 0
	for _, p := range a.procs.all() {
		info := p.info()
		if size += infoSize(info); size > guestproto.MaxJSON/2 {
			break
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// infoSize estimates the size of a process's description.
func infoSize(i guestproto.ProcessInfo) int {
	n := 512 + len(i.Command) + len(i.Tag) + len(i.WorkDir)
	for _, arg := range i.Args {
		n += len(arg) + 3
	}
	return n
}

// queryProcesses lists processes, however many there are.
func queryProcesses(a *agent, ch *channel, q guestproto.ProcessQuery) (any, error) {
	var lines []byte
	for _, p := range a.procs.all() {
		if q.Tag != "" && p.tag != q.Tag {
			continue
		}
		info := p.info()
		if q.Running && info.Exit != nil || q.Ended && info.Exit == nil {
			continue
		}
		line, err := json.Marshal(info)
		if err != nil {
			return nil, err
		}
		lines = append(append(lines, line...), '\n')
		if len(lines) >= guestproto.MaxPayload/4 {
			if err := ch.send(lines); err != nil {
				return nil, err
			}
			lines = lines[:0]
		}
	}
	return struct{}{}, ch.send(lines)
}

func inspectProcess(a *agent, _ *channel, ref guestproto.ProcessRef) (any, error) {
	p, err := a.procs.resolve(ref)
	if err != nil {
		return nil, err
	}
	return p.info(), nil
}

func waitProcess(a *agent, ch *channel, ref guestproto.ProcessRef) (any, error) {
	p, err := a.procs.resolve(ref)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.ended:
		return p.info(), nil
	case <-ch.done:
		return nil, errGone
	}
}

// resolve finds a process by one of its names.
func (t *processTable) resolve(ref guestproto.ProcessRef) (*process, error) {
	if ref.ID != "" {
		return t.find(ref.ID)
	}
	what := "the tag"
	matches := func(p *process) bool { return p.tag == ref.Tag }
	if ref.PID > 0 {
		what = "the PID"
		matches = func(p *process) bool { return p.inner == ref.PID }
	} else if ref.Tag == "" {
		return nil, fail(codeInvalid, "process", "a process is named by its id, its PID or its tag")
	}
	var running, ended []*process
	for _, p := range t.all() {
		switch {
		case !matches(p):
		case p.hasEnded():
			ended = append(ended, p)
		default:
			running = append(running, p)
		}
	}
	found := running
	if len(found) == 0 {
		found = ended
		if ref.PID > 0 && len(found) > 1 {
			found = found[len(found)-1:] // numbers are used again
		}
	}
	switch len(found) {
	case 0:
		return nil, fail(codeProcessNotFound, "", "no process of the sandbox has %s, or none that is still kept", what)
	case 1:
		return found[0], nil
	}
	return nil, fail(codePrecondition, "", "%d processes have the tag", len(found))
}

// Bounds of what is kept of a command, in bytes.
const (
	maxCommandText = 1 << 10
	maxArgsText    = 4 << 10
)

// shorten cuts a command for a list.
func shorten(s string) string {
	if len(s) > maxCommandText {
		s = s[:maxCommandText] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// keptArgs returns what is kept of an argument list: all or nothing.
func keptArgs(args []string) []string {
	total := 0
	for _, arg := range args {
		if total += len(arg) + 16; total > maxArgsText || !utf8.ValidString(arg) {
			return nil
		}
	}
	return args
}

// quoteArgs spells an argument list as a shell would take it.
func quoteArgs(args []string) string {
	var b strings.Builder
	for i, arg := range args {
		if i > 0 {
			b.WriteByte(' ')
		}
		plain := arg != ""
		for j := range len(arg) {
			plain = plain && (plainByte(arg[j]) && arg[j] != ' ' && arg[j] != '\t' || arg[j] >= 0x80)
		}
		if plain {
			b.WriteString(arg)
		} else {
			b.WriteString("'" + strings.ReplaceAll(arg, "'", `'\''`) + "'")
		}
		if b.Len() > maxCommandText {
			break
		}
	}
	return b.String()
}
