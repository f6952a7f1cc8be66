package drivertest

import (
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

// linkReopen: a second link ends the first, and processes go on.
func (s suite) linkReopen(t *testing.T) {
	spec := s.h.Spec(t)
	i := s.create(t, s.h.Open(t), spec)
	first := Attach(t, i, spec)
	Start(t, first, guestproto.ProcessStart{ID: "stays", Shell: "echo one; sleep 1; echo two"})
	second := Attach(t, i, spec)
	select {
	case <-first.Done():
	case <-time.After(testTimeout):
		t.Fatal("the first link is still open")
	}
	if first.BootID() != second.BootID() {
		t.Error("the agent is another one")
	}
	var out strings.Builder
	p, err := second.Rejoin(testContext(t), "stays", 0, func(c guestlink.Chunk) error {
		out.Write(c.Data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(testContext(t)); err != nil || exit.ExitCode != 0 || out.String() != "one\ntwo\n" {
		t.Errorf("the process gave %q, %+v, %v", out.String(), exit, err)
	}
}

// linkTorn: a daemon dies in the middle of a frame, the next one is understood.
func (s suite) linkTorn(t *testing.T) {
	spec := s.h.Spec(t)
	i := s.create(t, s.h.Open(t), spec)
	Attach(t, i, spec).Close()
	frame := guestproto.AppendFrame(nil, guestproto.Header{Type: guestproto.TypePing}, make([]byte, 200_000))
	for _, cut := range []int{1, guestproto.HeaderSize - 1, guestproto.HeaderSize, 100_000, len(frame) - 1} {
		rwc, err := i.Link(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		go discard(rwc)
		if _, err := rwc.Write(frame[:cut]); err != nil {
			t.Fatal(err)
		}
		rwc.Close()
		c := Attach(t, i, spec)
		wantOutput(t, c, "echo whole", "whole\n")
		c.Close()
	}
}

// linkClose: whoever waits for a link returns when it is closed.
func (s suite) linkClose(t *testing.T) {
	spec := s.h.Spec(t)
	i := s.create(t, s.h.Open(t), spec)
	Attach(t, i, spec).Close()
	rwc, err := i.Link(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		// What the closed session had on its way may come first.
		buf := make([]byte, 4096)
		for {
			if _, err := rwc.Read(buf); err != nil {
				read <- err
				return
			}
		}
	}()
	time.Sleep(20 * time.Millisecond)
	rwc.Close()
	select {
	case <-read:
	case <-time.After(testTimeout):
		t.Fatal("a read did not return when its link was closed")
	}
	if _, err := rwc.Write([]byte{0}); err == nil {
		t.Error("a closed link takes bytes")
	}
	wantOutput(t, Attach(t, i, spec), "echo again", "again\n")
}

// linkBacklog: a host that goes away while a process writes a lot comes back.
func (s suite) linkBacklog(t *testing.T) {
	spec := s.h.Spec(t)
	i := s.create(t, s.h.Open(t), spec)
	c := Attach(t, i, spec)
	Start(t, c, guestproto.ProcessStart{ID: "loud", Shell: "yes"})
	time.Sleep(50 * time.Millisecond)
	c.Close()
	time.Sleep(100 * time.Millisecond)
	c = Attach(t, i, spec)
	wantOutput(t, c, "echo heard", "heard\n")
	if err := c.Kill(testContext(t), guestproto.ProcessKill{ID: "loud", Signal: 9, Tree: true}); err != nil {
		t.Error(err)
	}
}
