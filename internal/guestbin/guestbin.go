// Package guestbin carries the guest agent inside the main binary. The build puts
// the agent into this package's bin directory before it compiles the rest.
package guestbin

import (
	"embed"
	"errors"
	"fmt"
)

// bin always holds its README, so that the package compiles without the agent.
//
//go:embed bin
var bin embed.FS

// ErrMissing is what Agent returns in a binary that was built without the agent.
var ErrMissing = errors.New("this binary was built without the guest agent: build it with `make build`")

// Agent returns the guest agent, a static Linux executable.
func Agent() ([]byte, error) {
	agent, err := bin.ReadFile("bin/ringfence-guest")
	if err != nil {
		return nil, ErrMissing
	}
	if len(agent) < 4 || string(agent[:4]) != "\x7fELF" {
		return nil, fmt.Errorf("cannot use the embedded guest agent: it is not an executable")
	}
	return agent, nil
}
