package engine

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"ringfence.dev/ringfence"
)

// Host says what the machine has.
type Host interface {
	// AvailableMiB is the memory that could be used without swapping.
	AvailableMiB() (int64, error)
	// BootID changes whenever the machine starts.
	BootID() (string, error)
}

type linuxHost struct{}

func (linuxHost) AvailableMiB() (int64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer f.Close() // it was only read
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var kib int64
		if n, _ := fmt.Sscanf(lines.Text(), "MemAvailable: %d kB", &kib); n == 1 {
			return kib >> 10, nil
		}
	}
	return 0, fmt.Errorf("/proc/meminfo has no MemAvailable")
}

func (linuxHost) BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// startingMiB is what a sandbox that starts is taken to use before the host's
// available memory shows it.
const startingMiB = 64

// reserve counts one more create, unless the memory that the host would have left
// if the new sandbox used all of its own is below the reserve.
func (e *Engine) reserve(size ringfence.Size) (done func(), err error) {
	available, err := e.Host.AvailableMiB()
	if err != nil {
		return nil, ringfence.Errorf(ringfence.CodeInternal, "cannot read the host's memory").WithCause(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	available -= int64(e.starting) * startingMiB
	if available-size.MemoryMiB < e.ReserveMiB {
		refused := ringfence.Errorf(ringfence.CodeResourceExhausted,
			"the host has no room for a sandbox of %d MiB: %d MiB are available, %d MiB of them are kept in reserve",
			size.MemoryMiB, max(available, 0), e.ReserveMiB).
			WithHint("try again later, ask for less memory_mib, or end sandboxes that are not needed").WithField("memory_mib")
		refused.RetryAfterSeconds = 5
		return nil, refused
	}
	e.starting++
	return func() {
		e.mu.Lock()
		e.starting--
		e.mu.Unlock()
	}, nil
}
