package guest

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// TakeLink moves the link off the numbers 0 and 1, so that nothing that prints by
// mistake can end up between its frames.
func TakeLink() (in, out *os.File, err error) {
	var fds [2]int
	for i := range fds {
		if fds[i], err = unix.FcntlInt(uintptr(i), unix.F_DUPFD_CLOEXEC, 10); err != nil {
			return nil, nil, fmt.Errorf("cannot use the link: %w", err)
		}
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot use the link: %w", err)
	}
	defer unix.Close(null)
	for i := range fds {
		if err := unix.Dup3(null, i, 0); err != nil {
			return nil, nil, fmt.Errorf("cannot use the link: %w", err)
		}
	}
	return os.NewFile(uintptr(fds[0]), "link-in"), os.NewFile(uintptr(fds[1]), "link-out"), nil
}
