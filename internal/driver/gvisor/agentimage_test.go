package gvisor_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// A snapshot names the image of its agent by what is in it: two data directories make
// the same one of the same agent.
func TestAgentImageIsReproducible(t *testing.T) {
	var images [2][]byte
	for i := range images {
		dir := t.TempDir()
		open(t, dir)
		found, err := filepath.Glob(filepath.Join(dir, "agents", "*.erofs"))
		if err != nil || len(found) != 1 {
			t.Fatalf("%v %v", found, err)
		}
		if images[i], err = os.ReadFile(found[0]); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(images[0], images[1]) {
		t.Error("the images differ")
	}
}
