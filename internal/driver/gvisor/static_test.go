package gvisor

import (
	"strings"
	"testing"
)

func TestLinkedStatically(t *testing.T) {
	if err := linkedStatically("/proc/self/exe"); err != nil {
		t.Error(err)
	}
	if err := linkedStatically("/bin/sh"); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("a program with a dynamic linker: %v", err)
	}
	if err := linkedStatically("/etc/passwd"); err == nil {
		t.Error("what is no program was taken")
	}
}
