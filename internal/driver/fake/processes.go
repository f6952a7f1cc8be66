package fake

import (
	"encoding/json"
	"io"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

func (c *call) processSpawn(req guestproto.Open) (any, error) {
	var start guestproto.ProcessStart
	if err := params(req, &start); err != nil {
		return nil, err
	}
	p, err := c.s.g.start(start)
	if err != nil {
		return nil, err
	}
	go p.run()
	return p.info(), nil
}

func (c *call) processQuery(req guestproto.Open) error {
	var q guestproto.ProcessQuery
	if err := params(req, &q); err != nil {
		return err
	}
	var lines []byte
	for _, info := range c.s.g.list() {
		if q.Tag != "" && info.Tag != q.Tag || q.Running && info.Exit != nil || q.Ended && info.Exit == nil {
			continue
		}
		line, err := json.Marshal(info)
		if err != nil {
			return err
		}
		lines = append(append(lines, line...), '\n')
	}
	return c.data(guestproto.TypeData, 0, lines)
}

// resolve finds a process by one of its names.
func (c *call) resolve(req guestproto.Open) (*process, error) {
	var ref guestproto.ProcessRef
	if err := params(req, &ref); err != nil {
		return nil, err
	}
	if ref.ID != "" {
		return c.s.g.process(ref.ID)
	}
	var running, ended []*process
	c.s.g.mu.Lock()
	for _, p := range c.s.g.order {
		switch {
		case ref.PID > 0 && p.pid != ref.PID, ref.PID == 0 && p.tag != ref.Tag:
		case p.exitStatus() == nil:
			running = append(running, p)
		default:
			ended = append(ended, p)
		}
	}
	c.s.g.mu.Unlock()
	if len(running) == 0 {
		running = ended
	}
	switch len(running) {
	case 0:
		return nil, ringfence.Errorf(ringfence.CodeProcessNotFound, "no process of the sandbox has the name")
	case 1:
		return running[0], nil
	}
	return nil, ringfence.Errorf(ringfence.CodeFailedPrecondition, "%d processes have the tag", len(running))
}

func (c *call) processInspect(req guestproto.Open) (any, error) {
	p, err := c.resolve(req)
	if err != nil {
		return nil, err
	}
	return p.info(), nil
}

func (c *call) processWait(req guestproto.Open) (any, error) {
	p, err := c.resolve(req)
	if err != nil {
		return nil, err
	}
	for {
		p.mu.Lock()
		exit, wake := p.exit, p.wake
		p.mu.Unlock()
		if exit != nil {
			return p.info(), nil
		}
		select {
		case <-wake:
		case <-c.done:
			return nil, errCanceled
		}
	}
}

func (c *call) processInput(req guestproto.Open) (any, error) {
	var in guestproto.ProcessInput
	if err := params(req, &in); err != nil {
		return nil, err
	}
	p, err := c.s.g.process(in.ID)
	if err != nil {
		return nil, err
	}
	switch {
	case p.exitStatus() != nil:
		return nil, processEnded(p.id)
	case !p.takesInput():
		return nil, ringfence.Errorf(ringfence.CodeStdinClosed, "the process's input is closed")
	}
	n, err := io.Copy(p.stdin, c)
	if err != nil {
		if p.exitStatus() != nil {
			err = processEnded(p.id)
		}
		return nil, err
	}
	if in.Close {
		p.closeInput()
	}
	return guestproto.ProcessWritten{Bytes: n}, nil
}

func processEnded(id string) error {
	return ringfence.Errorf(ringfence.CodeProcessEnded, "the process %q has ended", id)
}

func (c *call) processResize(req guestproto.Open) error {
	var r guestproto.ProcessResize
	if err := params(req, &r); err != nil {
		return err
	}
	if _, err := c.s.g.process(r.ID); err != nil {
		return err
	}
	return ringfence.Errorf(ringfence.CodeFailedPrecondition, "the process %q has no terminal", r.ID)
}

// processWatch says what runs, and then what starts and ends.
func (c *call) processWatch() error {
	known := map[string]bool{} // by id: whether its end was told
	var position uint64
	for {
		c.s.g.mu.Lock()
		changed := c.s.g.changed
		c.s.g.mu.Unlock()
		for _, info := range c.s.g.list() {
			ended := info.Exit != nil
			if told, ok := known[info.ID]; ok && told == ended || !ok && position == 0 && ended {
				continue
			}
			known[info.ID] = ended
			line, err := json.Marshal(guestproto.ProcessNotice{Process: info})
			if err != nil {
				return err
			}
			if err := c.data(guestproto.TypeData, position, append(line, '\n')); err != nil {
				return err
			}
			position += uint64(len(line)) + 1
		}
		select {
		case <-changed:
		case <-c.done:
			return errCanceled
		}
	}
}
