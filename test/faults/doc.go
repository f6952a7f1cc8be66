// Package faults kills what it can — the daemon at each step, sandboxes in the middle
// of a command — and checks that nothing is lost, nothing is left behind and nobody
// is told that it went well. It drives the real binary with real gVisor.
package faults
