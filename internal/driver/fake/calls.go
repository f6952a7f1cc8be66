package fake

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"slices"
	"strings"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

// serve does one call and returns its result.
func (c *call) serve(req guestproto.Open) (any, error) {
	g := c.s.g
	switch req.Method {
	case guestproto.MethodIdentity:
		var id guestproto.Identity
		if err := params(req, &id); err != nil {
			return nil, err
		}
		g.mu.Lock()
		g.identity = id
		g.mu.Unlock()
		return nil, nil
	case guestproto.MethodFreeze:
		c.s.mu.Lock()
		c.s.frozen = true
		c.s.mu.Unlock()
		return nil, nil
	case guestproto.MethodStats:
		return g.stats(), nil
	case guestproto.MethodProcessStart:
		return c.processStart(req)
	case guestproto.MethodProcessAttach:
		return c.processAttach(req)
	case guestproto.MethodProcessKill:
		return nil, c.processKill(req)
	case guestproto.MethodProcessList:
		return g.list(), nil
	case guestproto.MethodProcessSpawn:
		return c.processSpawn(req)
	case guestproto.MethodProcessQuery:
		return nil, c.processQuery(req)
	case guestproto.MethodProcessInspect:
		return c.processInspect(req)
	case guestproto.MethodProcessWait:
		return c.processWait(req)
	case guestproto.MethodProcessInput:
		return c.processInput(req)
	case guestproto.MethodProcessResize:
		return nil, c.processResize(req)
	case guestproto.MethodProcessWatch:
		return nil, c.processWatch()
	case guestproto.MethodFileRead:
		return nil, c.fileRead(req)
	case guestproto.MethodFileWrite:
		return c.fileWrite(req)
	case guestproto.MethodFileStat:
		return c.fileStat(req)
	case guestproto.MethodFileList:
		return nil, c.fileList(req)
	case guestproto.MethodFileMkdir:
		return c.fileMkdir(req)
	case guestproto.MethodFileRename:
		return c.fileRename(req)
	case guestproto.MethodFileRemove:
		return nil, c.fileRemove(req)
	case guestproto.MethodFileMode:
		return c.fileMode(req)
	case guestproto.MethodFileCopy:
		return c.fileCopy(req)
	case guestproto.MethodFileSearch:
		return c.fileSearch(req)
	case guestproto.MethodFileChecksum:
		return c.fileChecksum(req)
	case guestproto.MethodFileMetadata:
		return c.fileMetadata(req)
	case guestproto.MethodFileWatch:
		return nil, c.fileWatch(req)
	case guestproto.MethodArchiveRead:
		return nil, c.archiveRead(req)
	case guestproto.MethodArchiveWrite:
		return c.archiveWrite(req)
	case guestproto.MethodPortList:
		return c.portList(), nil
	case guestproto.MethodPortDial:
		return c.portDial(req)
	}
	return nil, ringfence.Errorf(ringfence.CodeNotYetSupported, "the agent knows no %q", req.Method)
}

func params(req guestproto.Open, v any) error {
	if err := json.Unmarshal(req.Params, v); err != nil {
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "cannot read the parameters of %s", req.Method)
	}
	return nil
}

func (c *call) processStart(req guestproto.Open) (any, error) {
	var start guestproto.ProcessStart
	if err := params(req, &start); err != nil {
		return nil, err
	}
	p, err := c.s.g.start(start)
	if err != nil {
		return nil, err
	}
	p.hold(0)
	defer p.unhold()
	info := p.info()
	c.event(guestproto.ProcessStarted{ID: p.id, PID: p.pid, Info: &info})
	if start.Stdin {
		go func() {
			if _, err := io.Copy(p.stdin, c); err == nil { // a host that leaves ends no input
				p.closeInput()
			}
		}()
	}
	go p.run()
	return c.follow(p, 0, true, noEnd)
}

func (c *call) processAttach(req guestproto.Open) (any, error) {
	var at guestproto.ProcessAttach
	if err := params(req, &at); err != nil {
		return nil, err
	}
	p, err := c.s.g.process(at.ID)
	if err != nil {
		return nil, err
	}
	from := p.from(at.From)
	until := noEnd
	if at.NoFollow {
		until = p.info().LogEnd
	}
	if at.Hold {
		p.hold(from)
		defer p.unhold()
	}
	info := p.info()
	c.event(guestproto.ProcessStarted{ID: p.id, PID: p.pid, From: from, Info: &info})
	exit, err := c.follow(p, from, at.Hold, until)
	if e, ok := exit.(guestproto.ProcessExit); ok && from > at.From {
		e.Lost += from - at.From
		exit = e
	}
	return exit, err
}

// noEnd is a position that no log reaches.
const noEnd = uint64(math.MaxUint64)

// follow sends a process's output from a position on, at most until another, and returns
// its exit.
func (c *call) follow(p *process, position uint64, holds bool, until uint64) (any, error) {
	var lost uint64
	for {
		if position >= until && p.exitStatus() == nil {
			return guestproto.ProcessExit{Running: true, Position: position, Lost: lost}, nil
		}
		piece, exit, wait := p.next(position)
		if piece.data != nil {
			lost += piece.position - position
			if err := c.data(piece.typ, piece.position, piece.data); err != nil {
				return nil, err
			}
			position = piece.position + uint64(len(piece.data))
			if holds {
				p.hold(position)
			}
			continue
		}
		if exit != nil {
			e := *exit
			e.Lost = lost
			return e, nil
		}
		select {
		case <-wait:
		case <-c.done:
			return nil, errCanceled
		}
	}
}

func (c *call) processKill(req guestproto.Open) error {
	var kill guestproto.ProcessKill
	if err := params(req, &kill); err != nil {
		return err
	}
	if kill.Signal < 0 || kill.Signal > 64 {
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "there is no signal %d", kill.Signal).WithField("signal")
	}
	p, err := c.s.g.process(kill.ID)
	if err != nil {
		return err
	}
	if p.exitStatus() != nil && !kill.Tree {
		return processEnded(p.id)
	}
	p.kill(kill)
	return nil
}

// pathOf returns the bytes of a path, which has to be absolute.
func pathOf(f guestproto.FilePath) (string, user, error) {
	u, err := lookUser(f.User)
	if err != nil {
		return "", u, err
	}
	path := f.Path
	if len(f.PathBytes) > 0 {
		path = string(f.PathBytes)
	}
	return path, u, checkPath(path)
}

func checkPath(path string) error {
	switch {
	case path == "" || path[0] != '/':
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "the path %q is not absolute", path).WithField("path")
	case bytes.IndexByte([]byte(path), 0) >= 0:
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "the path has a zero byte").WithField("path")
	case len(path) > ringfence.MaxPathBytes:
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "the path is longer than %d bytes", ringfence.MaxPathBytes).WithField("path")
	}
	return nil
}

func (c *call) fileRead(req guestproto.Open) error {
	var f guestproto.FileRead
	if err := params(req, &f); err != nil {
		return err
	}
	path, u, err := pathOf(f.FilePath)
	if err != nil {
		return err
	}
	info, data, err := c.s.g.files.read(u, path)
	if err != nil {
		return err
	}
	if f.Offset < 0 || f.Length < 0 || f.Offset > int64(len(data)) {
		return ringfence.Errorf(ringfence.CodeRangeInvalid, "the file has %d bytes, the range begins at %d", len(data), f.Offset)
	}
	data = data[f.Offset:]
	if f.Length > 0 {
		data = data[:min(f.Length, int64(len(data)))]
	}
	c.event(info)
	return c.data(guestproto.TypeData, 0, data)
}

func (c *call) fileWrite(req guestproto.Open) (any, error) {
	var f guestproto.FileWrite
	if err := params(req, &f); err != nil {
		return nil, err
	}
	path, u, err := pathOf(f.FilePath)
	if err != nil {
		return nil, err
	}
	t := c.s.g.files
	if err := t.writable(u, path); err != nil {
		return nil, err
	}
	var data bytes.Buffer
	if _, err := io.Copy(&data, io.LimitReader(c, t.limit+1)); err != nil {
		return nil, err
	}
	return t.write(u, path, data.Bytes(), f)
}

func (c *call) fileStat(req guestproto.Open) (any, error) {
	var f guestproto.FilePath
	if err := params(req, &f); err != nil {
		return nil, err
	}
	path, u, err := pathOf(f)
	if err != nil {
		return nil, err
	}
	return c.s.g.files.stat(u, path)
}

func (c *call) fileList(req guestproto.Open) error {
	var f guestproto.FileList
	if err := params(req, &f); err != nil {
		return err
	}
	path, u, err := pathOf(f.FilePath)
	if err != nil {
		return err
	}
	entries, err := c.s.g.files.list(u, path, max(f.Depth, 1))
	if err != nil {
		return err
	}
	left := f.Limit
	w := &lineWriter{c: c}
	after := strings.Split(string(f.After), "/")
	for _, e := range entries {
		rel := strings.TrimPrefix(strings.TrimPrefix(e.Path, clean(path)), "/")
		if len(f.After) > 0 && slices.Compare(strings.Split(rel, "/"), after) <= 0 {
			continue
		}
		if left--; left < 0 && f.Limit > 0 {
			break
		}
		if !f.Metadata {
			e.Metadata = nil
		}
		if err := w.put(e); err != nil {
			return err
		}
	}
	return nil
}

func (c *call) fileMkdir(req guestproto.Open) (any, error) {
	var f guestproto.FileMkdir
	if err := params(req, &f); err != nil {
		return nil, err
	}
	path, u, err := pathOf(f.FilePath)
	if err != nil {
		return nil, err
	}
	return c.s.g.files.mkdir(u, path, f.Owner, f.Mode)
}

func (c *call) fileRename(req guestproto.Open) (any, error) {
	var f guestproto.FileRename
	if err := params(req, &f); err != nil {
		return nil, err
	}
	path, u, err := pathOf(f.FilePath)
	if err != nil {
		return nil, err
	}
	to := f.To
	if len(f.ToBytes) > 0 {
		to = string(f.ToBytes)
	}
	if err := checkPath(to); err != nil {
		var e *ringfence.Error
		if errors.As(err, &e) {
			e.Field = "to"
		}
		return nil, err
	}
	return c.s.g.files.rename(u, path, to)
}

func (c *call) fileRemove(req guestproto.Open) error {
	var f guestproto.FileRemove
	if err := params(req, &f); err != nil {
		return err
	}
	path, u, err := pathOf(f.FilePath)
	if err != nil {
		return err
	}
	return c.s.g.files.remove(u, path, f.Recursive)
}
