//go:build faultpoints

package main

import (
	"os"
	"path/filepath"
	"time"
)

// atPoint lets a test stop the server at a point of an operation, by files in the
// directory RINGFENCE_FAULT_DIR: each point that is passed is a line of `passed`; when there is a
// file `stop-<point>`, it is renamed to `reached`, and the operation goes on once that
// is gone.
var atPoint = func(point string) {
	dir := os.Getenv("RINGFENCE_FAULT_DIR")
	if dir == "" {
		return
	}
	if f, err := os.OpenFile(filepath.Join(dir, "passed"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
		f.WriteString(point + "\n")
		f.Close()
	}
	reached := filepath.Join(dir, "reached")
	if os.Rename(filepath.Join(dir, "stop-"+point), reached) != nil {
		return
	}
	for _, err := os.Stat(reached); err == nil; _, err = os.Stat(reached) {
		time.Sleep(time.Millisecond)
	}
}
