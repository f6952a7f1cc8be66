package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

const (
	// maxWatches is how many directories one call watches.
	maxWatches = 65536
	// watched is what the kernel is asked to tell of a directory.
	watched = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
)

// fileWatcher turns the kernel's events about directories into changes of files. A file is
// watched through its directory, by name: then it is still watched when another file
// takes its place, as most programs save one.
type fileWatcher struct {
	a         *agent
	ch        *channel
	user      account
	root      string
	only      string // the name of the file that is watched; empty: all
	recursive bool
	inotify   *os.File
	fd        int

	// What follows is the reading goroutine's alone.
	dirs  map[int32]string   // watched directories by their number
	wds   map[string]int32   // and the other way round
	known map[knownName]bool // reported as they were found; the kernel may tell of them again
	lost  bool               // directories may be unwatched since an overflow
	out   *changeQueue
}

type knownName struct {
	wd   int32
	name string
}

func watchFiles(a *agent, ch *channel, f guestproto.FileWatch) (any, error) {
	p, u, err := a.target(f.FilePath)
	if err != nil {
		return nil, err
	}
	w := &fileWatcher{
		a: a, ch: ch, user: u, root: path.Clean(p), recursive: f.Recursive,
		dirs: map[int32]string{}, wds: map[string]int32{}, known: map[knownName]bool{}, out: newChangeQueue(),
	}
	w.fd, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fileError("watch", p, err)
	}
	w.inotify = os.NewFile(uintptr(w.fd), "inotify")
	defer w.inotify.Close()
	if err := w.begin(); err != nil {
		return nil, fileError("watch", p, err)
	}
	if err := ch.event(struct{}{}); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.read()
		w.out.end()
	}()
	err = w.send()
	w.inotify.Close() // ends the reading
	<-ended
	if err != nil {
		return nil, err
	}
	return struct{}{}, nil
}

// begin watches what is there.
func (w *fileWatcher) begin() error {
	return w.a.ns.onFileThread(w.user, func() error {
		var st unix.Stat_t
		if err := unix.Stat(w.root, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			w.root, w.only = path.Split(w.root)
			w.root, w.recursive = path.Clean(w.root), false
		}
		return w.add(w.root, false)
	})
}

// add watches a directory and, if it is wanted, those in it. report: what is in it is
// new. It runs on a file thread.
func (w *fileWatcher) add(dir string, report bool) error {
	if w.ch.gone() {
		return errGone
	}
	if len(w.dirs) >= maxWatches {
		return fail(codeExhausted, "path", "more than %d directories cannot be watched at once; watch a smaller one", maxWatches)
	}
	mask := uint32(watched)
	if dir != w.root {
		mask |= unix.IN_DONT_FOLLOW
	}
	n, err := unix.InotifyAddWatch(w.fd, dir, mask)
	if err != nil {
		return err
	}
	wd := int32(n)
	if old, ok := w.dirs[wd]; ok {
		delete(w.wds, old)
	}
	w.dirs[wd], w.wds[dir] = dir, wd
	if !w.recursive && !report {
		return nil
	}
	fd, err := openRetry(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return eachName(fd, func(name string) error {
		var st unix.Stat_t
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || isTemp(name) {
			return nil // it went away meanwhile, or will in a moment
		}
		isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
		full := path.Join(dir, name)
		if report {
			w.known[knownName{wd, name}] = true
			w.out.put(guestproto.FileChange{Type: guestproto.ChangeCreate, Path: full, IsDir: isDir})
		}
		if isDir && w.recursive {
			return skipGone(w.add(full, report))
		}
		return nil
	})
}

// skipGone leaves out what went away meanwhile or is not this user's to look at.
func skipGone(err error) error {
	for _, gone := range []error{unix.EACCES, unix.EPERM, unix.ENOENT, unix.ENOTDIR, unix.ELOOP} {
		if errors.Is(err, gone) {
			return nil
		}
	}
	return err
}

// read reads the kernel's events until what is watched is gone, or nobody waits.
func (w *fileWatcher) read() {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.inotify.Read(buf)
		if err != nil {
			return
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			wd, mask, cookie := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:]), binary.NativeEndian.Uint32(b[8:])
			size := int(binary.NativeEndian.Uint32(b[12:]))
			b = b[unix.SizeofInotifyEvent:]
			name := string(bytes.TrimRight(b[:min(size, len(b))], "\x00"))
			b = b[min(size, len(b)):]
			if w.event(wd, mask, cookie, name) {
				return
			}
		}
		if w.lost {
			w.lost = false
			w.rescan()
		}
		if n < len(buf)/2 { // the kernel had no more: what comes now is new
			clear(w.known)
		}
	}
}

var changeTypes = []struct {
	mask uint32
	typ  string
}{
	{unix.IN_CREATE, guestproto.ChangeCreate},
	{unix.IN_MODIFY, guestproto.ChangeModify},
	{unix.IN_ATTRIB, guestproto.ChangeAttrib},
	{unix.IN_DELETE, guestproto.ChangeRemove},
	{unix.IN_MOVED_FROM, guestproto.ChangeRenameFrom},
	{unix.IN_MOVED_TO, guestproto.ChangeRenameTo},
}

// event handles one event, and reports whether it was the last.
func (w *fileWatcher) event(wd int32, mask, cookie uint32, name string) (gone bool) {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		w.out.overflow()
		w.lost = true
		return false
	}
	dir, ok := w.dirs[wd]
	if !ok {
		return false // of a directory that is watched no more
	}
	if mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0 {
		if dir == w.root {
			return true
		}
		if mask&unix.IN_MOVE_SELF == 0 {
			delete(w.dirs, wd)
			delete(w.wds, dir)
		}
		return false // its parent tells the rest
	}
	if name == "" || w.only != "" && name != w.only || isTemp(name) {
		return false
	}
	full := path.Join(dir, name)
	isDir := mask&unix.IN_ISDIR != 0
	for _, c := range changeTypes {
		if mask&c.mask == 0 {
			continue
		}
		key := knownName{wd, name}
		if c.mask == unix.IN_CREATE && w.known[key] {
			delete(w.known, key)
			continue
		}
		w.out.put(guestproto.FileChange{Type: c.typ, Path: full, IsDir: isDir, Cookie: cookie})
	}
	if !isDir || !w.recursive {
		return false
	}
	switch {
	case mask&unix.IN_MOVED_FROM != 0:
		w.drop(full)
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		if _, ok := w.wds[full]; ok {
			return false // found when its parent was
		}
		err := w.a.ns.onFileThread(w.user, func() error { return skipGone(w.add(full, true)) })
		if err != nil && !errors.Is(err, errGone) {
			w.out.overflow() // it cannot be watched, and what happens in it will not be told
		}
	}
	return false
}

// drop watches a directory and those in it no more: it was moved away.
func (w *fileWatcher) drop(dir string) {
	for name, wd := range w.wds {
		if name == dir || strings.HasPrefix(name, dir+"/") {
			delete(w.wds, name)
			delete(w.dirs, wd)
			_, _ = unix.InotifyRmWatch(w.fd, uint32(wd)) // it may be gone
		}
	}
}

// rescan watches the directories whose making was lost in an overflow.
func (w *fileWatcher) rescan() {
	if !w.recursive {
		return
	}
	err := w.a.ns.onFileThread(w.user, func() error { return skipGone(w.add(w.root, false)) })
	if err != nil && !errors.Is(err, errGone) {
		w.out.overflow()
	}
}

// send sends what the reading goroutine found until there will be no more.
func (w *fileWatcher) send() error {
	for {
		changes, end := w.out.take()
		if len(changes) == 0 {
			if end {
				return nil
			}
			if w.ch.gone() {
				return errGone
			}
			select {
			case <-w.out.filled:
			case <-w.ch.arrived: // also when nobody waits any more
			}
			continue
		}
		if err := w.ch.send(changes); err != nil {
			return err
		}
	}
}

func encodeChange(c guestproto.FileChange) guestproto.FileChange {
	if !utf8.ValidString(c.Path) {
		c.PathBytes = []byte(c.Path)
	}
	return c
}
