package guest

import (
	"crypto/rand"
	"encoding/hex"
	"os"
)

// GenerationFile holds 32 random hex digits and a line feed. They change whenever the
// sandbox has become another one, or the same one again at a later time: when it starts,
// and after each restore. The kernel's random numbers are fresh by then, but a program
// that was running has the state of its own generators twice, and can watch this file.
const GenerationFile = generationDir + "/generation"

const generationDir = "/run/ringfence"

// newGeneration replaces the generation file.
func newGeneration() error {
	var b [16]byte
	rand.Read(b[:]) // never fails since Go 1.24
	if err := os.MkdirAll(generationDir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(GenerationFile+".new", []byte(hex.EncodeToString(b[:])+"\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(GenerationFile+".new", GenerationFile)
}
