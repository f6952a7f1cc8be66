package main

import (
	"debug/elf"
	"testing"

	"ringfence.dev/ringfence/internal/testenv"
)

// TestStatic: a binary that asks for a dynamic loader cannot start itself inside
// the empty root of a sandbox, and would not be one file for any Linux.
func TestStatic(t *testing.T) {
	f, err := elf.Open(testenv.RequireBinary(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("bin/ringfence is linked dynamically: it has a program header %v", p.Type)
		}
	}
	if libs, err := f.ImportedLibraries(); err != nil || len(libs) > 0 {
		t.Errorf("bin/ringfence needs %v (%v)", libs, err)
	}
}
