// Package guest holds the tests of the guest agent and its link with real parts: the
// agent as a process, on the host and as PID 1 of a gVisor sandbox.
package guest
