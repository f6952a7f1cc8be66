package guest

import (
	"encoding/json"
	"errors"
	"math"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

const (
	// maxDepth bounds a listing: each level holds a directory open.
	maxDepth = 64
	// listBatch is how much of a listing is put into one frame, in bytes.
	listBatch = 64 << 10
	// maxListLine is the longest line with metadata in it, in bytes: the host takes no
	// longer ones.
	maxListLine = 60 << 10
)

// lister walks a directory in the order of names and sends what it finds.
type lister struct {
	a     *agent
	ch    *channel
	batch []byte
	last  owners // of the entry before, which the next one mostly has, too
	left  int    // entries that may still come
	meta  bool
}

// errEnough ends a walk that has what it wants.
var errEnough = errors.New("enough")

func listFiles(a *agent, ch *channel, f guestproto.FileList) (any, error) {
	p, u, err := a.target(f.FilePath)
	if err != nil {
		return nil, err
	}
	depth := max(f.Depth, 1)
	if depth > maxDepth {
		return nil, fail(codeInvalid, "depth", "a listing goes %d levels deep at most", maxDepth)
	}
	l := lister{a: a, ch: ch, left: f.Limit, meta: f.Metadata}
	if f.Limit <= 0 {
		l.left = math.MaxInt
	}
	var after []string
	if len(f.After) > 0 {
		after = strings.Split(string(f.After), "/")
	}
	err = a.ns.onFileThread(u, func() error {
		fd, err := openRetry(p, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		return l.walk(fd, path.Clean(p), depth, after)
	})
	if err == nil || errors.Is(err, errEnough) {
		err = l.flush()
	}
	if err != nil {
		return nil, fileError("list", p, err)
	}
	return struct{}{}, nil
}

// walk lists an open directory and closes it. after is the last entry that was listed
// before, as its names from here on.
func (l *lister) walk(fd int, name string, depth int, after []string) error {
	defer unix.Close(fd)
	first := ""
	if len(after) > 0 {
		first = after[0]
	}
	names, err := smallest(fd, first, l.left)
	if err != nil {
		return err
	}
	for _, entry := range names {
		var rest []string
		if entry == first {
			if rest = after[1:]; len(rest) == 0 {
				rest = []string{""} // it was listed itself, and nothing in it
			}
		}
		if err := l.entry(fd, name, entry, depth, rest); err != nil {
			return err
		}
	}
	return nil
}

// smallest returns the first names of an open directory, in order, from one on: as many
// as can be needed, so that a page of a huge directory takes the memory of a page.
func smallest(fd int, from string, limit int) ([]string, error) {
	var names []string
	sorted := false
	err := eachName(fd, func(name string) error {
		if name < from {
			return nil
		}
		// The first one may have been listed already, which is not counted.
		if limit < math.MaxInt/4 && len(names) >= 2*limit+64 {
			slices.Sort(names)
			names, sorted = names[:limit+1], true
		}
		if sorted && name > names[limit] {
			return nil
		}
		names = append(names, name)
		return nil
	})
	slices.Sort(names)
	if sorted {
		names = names[:limit+1]
	}
	return names, err
}

// entry lists an entry and what is in it. after is set when the entry itself was listed
// before: the names of the last one in it, or an empty one.
func (l *lister) entry(fd int, dir, name string, depth int, after []string) error {
	if l.ch.gone() {
		return errGone
	}
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if err == unix.ENOENT {
			return nil // it went away meanwhile
		}
		return err
	}
	full := path.Join(dir, name)
	kind := st.Mode & unix.S_IFMT
	if after == nil {
		if err := l.put(fd, full, name, &st); err != nil {
			return err
		}
	}
	if kind != unix.S_IFDIR || depth <= 1 {
		return nil
	}
	sub, err := openDirAt(fd, name)
	if err == nil {
		return l.walk(sub, full, depth-1, after)
	}
	for _, gone := range []error{unix.EACCES, unix.EPERM, unix.ENOENT, unix.ENOTDIR, unix.ELOOP} {
		if errors.Is(err, gone) {
			return nil // not for this user, or another thing by now; the entry itself is listed
		}
	}
	return err
}

// put adds one entry to what is sent.
func (l *lister) put(fd int, full, name string, st *unix.Stat_t) error {
	if l.left == 0 {
		return errEnough
	}
	l.left--
	target := ""
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		target = readlinkAt(fd, name)
	}
	if !l.last.known || l.last.uid != st.Uid || l.last.gid != st.Gid {
		l.last = l.a.ownersOf(st)
	}
	info := describe(full, st, target, l.last)
	if l.meta {
		info.Metadata = metadataOf(full, info.Type)
	}
	line, err := json.Marshal(info)
	if err == nil && len(line) > maxListLine {
		info.Metadata = nil // it is in the description of the file by itself
		line, err = json.Marshal(info)
	}
	if err != nil {
		return err
	}
	l.batch = append(append(l.batch, line...), '\n')
	if len(l.batch) >= listBatch {
		return l.flush()
	}
	return nil
}

func (l *lister) flush() error {
	err := l.ch.send(l.batch)
	l.batch = l.batch[:0]
	return err
}
