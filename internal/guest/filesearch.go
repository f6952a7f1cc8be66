package guest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

const (
	// maxSearchLine is how much of a line is searched, in bytes.
	maxSearchLine = 1 << 20
	// maxSearchText is how much of a line is reported, in bytes.
	maxSearchText = 512
	// binaryProbe is where a zero byte tells that a file is no text.
	binaryProbe = 8 << 10
	// maxPattern bounds what is searched for, in bytes.
	maxPattern = 4096
)

// searcher walks a directory and sends what matches.
type searcher struct {
	ch      *channel
	name    []string // pattern, by element
	whole   bool     // it is for the path below the directory, not for its last element
	content *regexp.Regexp
	left    int
	batch   []byte
	reader  *bufio.Reader
}

func searchFiles(a *agent, ch *channel, f guestproto.FileSearch) (any, error) {
	p, u, err := a.target(f.FilePath)
	if err != nil {
		return nil, err
	}
	s := &searcher{ch: ch, left: f.Limit}
	if err := s.prepare(f); err != nil {
		return nil, err
	}
	depth := f.Depth
	if depth <= 0 || depth > maxTree {
		depth = maxTree
	}
	err = a.ns.onFileThread(u, func() error {
		fd, err := openRetry(p, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			unix.Close(fd)
			return err
		}
		clean := path.Clean(p)
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return s.walk(fd, clean, "", depth)
		}
		defer unix.Close(fd)
		if err := regular(p, &st); err != nil {
			return err
		}
		return s.file(fd, clean, path.Base(clean), &st)
	})
	truncated := errors.Is(err, errEnough)
	if err == nil || truncated {
		err = ch.send(s.batch)
	}
	if err != nil {
		return nil, fileError("search", p, err)
	}
	return guestproto.FileSearched{Truncated: truncated}, nil
}

func (s *searcher) prepare(f guestproto.FileSearch) error {
	if f.Limit <= 0 {
		return fail(codeInvalid, "limit", "a search needs a limit")
	}
	if f.Name == "" && f.Content == "" {
		return fail(codeInvalid, "name", "a search needs a name or a content")
	}
	if len(f.Name) > maxPattern || len(f.Content) > maxPattern {
		return fail(codeInvalid, "content", "a pattern has at most %d bytes", maxPattern)
	}
	if f.Name != "" {
		s.whole = strings.Contains(f.Name, "/")
		s.name = strings.Split(strings.TrimPrefix(f.Name, "/"), "/")
		for _, part := range s.name {
			if _, err := path.Match(part, ""); err != nil {
				return fail(codeInvalid, "name", "the pattern %q cannot be read: a bracket is not closed, or a backslash is last", f.Name)
			}
		}
	}
	if f.Content == "" {
		return nil
	}
	expr := f.Content
	if !f.Regex {
		expr = regexp.QuoteMeta(expr)
	}
	if f.IgnoreCase {
		expr = "(?i)" + expr
	}
	var err error
	if s.content, err = regexp.Compile(expr); err != nil {
		return fail(codeInvalid, "content", "the regular expression cannot be read: %v", err)
	}
	s.reader = bufio.NewReaderSize(nil, 256<<10)
	return nil
}

// walk searches an open directory and closes it. below is its path below the first one.
func (s *searcher) walk(fd int, dir, below string, depth int) error {
	defer unix.Close(fd)
	if s.ch.gone() {
		return errGone
	}
	var names []string
	if err := eachName(fd, func(name string) error { names = append(names, name); return nil }); err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		var st unix.Stat_t
		if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue // it went away meanwhile
		}
		full, rel := path.Join(dir, name), path.Join(below, name)
		switch kind := st.Mode & unix.S_IFMT; {
		case s.content == nil:
			if err := s.file(-1, full, rel, &st); err != nil {
				return err
			}
		case kind == unix.S_IFREG && st.Size > 0 && s.named(rel):
			file, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
			if err != nil {
				continue // not for this user, or another thing by now
			}
			err = s.file(file, full, rel, &st)
			unix.Close(file)
			if err != nil {
				return err
			}
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR || depth <= 1 {
			continue
		}
		sub, err := openDirAt(fd, name)
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			return err
		}
		if err != nil {
			continue
		}
		if err := s.walk(sub, full, rel, depth-1); err != nil {
			return err
		}
	}
	return nil
}

// named says whether a path below the directory fits the pattern.
func (s *searcher) named(rel string) bool {
	switch {
	case s.name == nil:
		return true
	case !s.whole:
		ok, _ := path.Match(s.name[0], path.Base(rel)) // the pattern is a good one
		return ok
	}
	return matchParts(s.name, strings.Split(rel, "/"))
}

// matchParts matches element by element. What has been reached is a set, so that many
// ** cost no more than few.
func matchParts(pattern, parts []string) bool {
	reached := make([]bool, len(pattern)+1)
	reached[0] = true
	skip := func() {
		for i, part := range pattern {
			if part == "**" && reached[i] {
				reached[i+1] = true
			}
		}
	}
	skip()
	for _, part := range parts {
		next := make([]bool, len(reached))
		for i, want := range pattern {
			if !reached[i] {
				continue
			}
			if want == "**" {
				next[i] = true
			} else if ok, _ := path.Match(want, part); ok { // the pattern is a good one
				next[i+1] = true
			}
		}
		reached = next
		skip()
	}
	return reached[len(pattern)]
}

// file reports a file, or the places in it.
func (s *searcher) file(fd int, full, rel string, st *unix.Stat_t) error {
	if !s.named(rel) {
		return nil
	}
	if s.content == nil {
		return s.put(guestproto.FileMatch{Path: full, Type: describe(full, st, "", owners{}).Type})
	}
	s.reader.Reset(fdReader(fd))
	if head, _ := s.reader.Peek(binaryProbe); bytes.IndexByte(head, 0) >= 0 {
		return nil
	}
	var long []byte // a line that is longer than the buffer
	for line := int64(1); ; line++ {
		if s.ch.gone() {
			return errGone
		}
		text, err := s.reader.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long[:0], text...)
			for errors.Is(err, bufio.ErrBufferFull) {
				text, err = s.reader.ReadSlice('\n')
				if len(long) < maxSearchLine {
					long = append(long, text...)
				}
			}
			text = long
		}
		if len(text) > 0 {
			text = bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r"))
			if at := s.content.FindIndex(text); at != nil {
				match := guestproto.FileMatch{Path: full, Type: "file", Line: line, Column: int64(at[0]) + 1, Text: excerpt(text, at[0])}
				if err := s.put(match); err != nil {
					return err
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return nil // it cannot be read to its end: what was found is true
		}
	}
}

// excerpt returns a line as text, or the part of a long one that begins a little before
// the place.
func excerpt(line []byte, at int) string {
	if len(line) > maxSearchText {
		from := max(0, min(at-maxSearchText/4, len(line)-maxSearchText))
		line = line[from : from+maxSearchText]
	}
	return strings.ToValidUTF8(string(line), "\uFFFD")
}

func (s *searcher) put(m guestproto.FileMatch) error {
	if s.left == 0 {
		return errEnough
	}
	s.left--
	if !utf8.ValidString(m.Path) {
		m.PathBytes = []byte(m.Path)
	}
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	s.batch = append(append(s.batch, line...), '\n')
	if len(s.batch) < listBatch {
		return nil
	}
	err = s.ch.send(s.batch)
	s.batch = s.batch[:0]
	return err
}

// fdReader reads an open file with plain system calls.
func fdReader(fd int) io.Reader { return blockingReader(fd) }
