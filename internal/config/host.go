package config

import (
	"fmt"
	"os"
)

// hostMemoryMiB returns the memory of the host; 0 when it is not known.
func hostMemoryMiB() int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close() // it was only read
	var kib int64
	if _, err := fmt.Fscanf(f, "MemTotal: %d kB", &kib); err != nil {
		return 0
	}
	return kib >> 10
}
