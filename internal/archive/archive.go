// Package archive reads and writes tar and zip archives as streams. Whoever reads one
// takes it for hostile: each name stays below the directory that it is unpacked into,
// links lead nowhere else, there are no devices, and what comes out is bounded. What
// this package cannot see, links that are there already, is the unpacker's to refuse:
// it opens one directory after the other and follows no link.
package archive

import (
	"fmt"
	"strings"
	"time"

	"ringfence.dev/ringfence"
)

// Format is a kind of archive.
type Format string

// The formats.
const (
	Tar     Format = "tar"
	TarGzip Format = "tar.gz"
	Zip     Format = "zip"
)

// ParseFormat returns the format of a name; the empty one is tar.
func ParseFormat(s string) (Format, bool) {
	switch f := Format(s); f {
	case "":
		return Tar, true
	case Tar, TarGzip, Zip:
		return f, true
	}
	return "", false
}

// ContentType is the format's media type.
func (f Format) ContentType() string {
	switch f {
	case TarGzip:
		return "application/gzip"
	case Zip:
		return "application/zip"
	}
	return "application/x-tar"
}

// Kind is what an entry is.
type Kind byte

// The kinds. There are no others: devices, sockets and named pipes are refused.
const (
	File Kind = iota
	Dir
	Symlink
	Hardlink
)

// Entry is one entry of an archive.
type Entry struct {
	Name    string // relative, with slashes, without "." and ".."; its exact bytes
	Kind    Kind
	Mode    uint32 // permission bits; setuid, setgid and sticky are never read
	Size    int64  // of a file, in bytes
	ModTime time.Time
	Target  string // where a symbolic link leads, or the name of the file that a hard link is another name of

	// Who owns it. Written, never read.
	UID, GID     int
	Owner, Group string
}

// Limits bounds what is read. A zero field means its default.
type Limits struct {
	Entries int64 // 1,000,000
	Bytes   int64 // of all files together; no limit
	// Ratio is how many bytes may come out for one that went in, once more than
	// RatioFrom bytes came out: 1000 and 64 MiB.
	Ratio     int64
	RatioFrom int64
	// LeadsOut, when not nil, is told of symbolic links that lead out of the directory.
	// They are then left out, and the archive is not refused for them.
	LeadsOut func(*Entry)
}

func (l Limits) filled() Limits {
	set := func(v *int64, value int64) {
		if *v == 0 {
			*v = value
		}
	}
	set(&l.Entries, 1_000_000)
	set(&l.Bytes, 1<<62)
	set(&l.Ratio, 1000)
	set(&l.RatioFrom, 64<<20)
	return l
}

// Lengths of names, in bytes.
const (
	maxName      = 4096
	maxComponent = 255
)

// Refuse is the error for an archive that is not unpacked, or not further. name is the
// entry at fault; empty: the archive itself.
func Refuse(name, format string, args ...any) error {
	why := fmt.Sprintf(format, args...)
	if name == "" {
		return ringfence.Errorf(ringfence.CodeArchiveRefused, "the archive was refused: %s", why)
	}
	if len(name) > 300 {
		name = name[:300] + "…"
	}
	return ringfence.Errorf(ringfence.CodeArchiveRefused, "the entry %q of the archive was refused: %s", name, why)
}

// cleanName returns a name without what says nothing; "" is the directory itself.
func cleanName(name string) (string, error) {
	switch {
	case name == "":
		return "", Refuse("", "an entry has no name")
	case len(name) > maxName:
		return "", Refuse(name, "its name has %d bytes, at most %d are possible", len(name), maxName)
	case name[0] == '/':
		return "", Refuse(name, "its name is absolute")
	case strings.IndexByte(name, 0) >= 0:
		return "", Refuse(name, "its name holds a zero byte")
	}
	parts := strings.Split(name, "/")
	kept := parts[:0]
	for _, p := range parts {
		switch {
		case p == "" || p == ".":
			continue
		case p == "..":
			return "", Refuse(name, "its name leaves the directory")
		case len(p) > maxComponent:
			return "", Refuse(name, "a part of its name has %d bytes, at most %d are possible", len(p), maxComponent)
		}
		kept = append(kept, p)
	}
	return strings.Join(kept, "/"), nil
}

// checkTarget refuses a symbolic link that could lead out of the directory. It may
// begin with as many ".." as it lies deep and have none after that: then it stays
// inside whatever the names on its way turn out to be, other links of the archive
// included.
func checkTarget(name, target string) error {
	switch {
	case target == "":
		return Refuse(name, "it is a link to nothing")
	case len(target) >= maxName:
		return Refuse(name, "its target has %d bytes, fewer than %d are possible", len(target), maxName)
	case strings.IndexByte(target, 0) >= 0:
		return Refuse(name, "its target holds a zero byte")
	case target[0] == '/':
		return Refuse(name, "it is a link to %q, out of the directory", target)
	}
	depth := strings.Count(name, "/")
	down := false
	for p := range strings.SplitSeq(target, "/") {
		switch {
		case p == "" || p == ".":
		case p != "..":
			down = true
		case down:
			return Refuse(name, `it is a link to %q, which goes up again after it went down`, target)
		default:
			if depth--; depth < 0 {
				return Refuse(name, "it is a link to %q, out of the directory", target)
			}
		}
	}
	return nil
}

// check brings an entry that was read into the form that unpackers rely on. skip: it
// is the directory itself, or a link that is left out.
func (e *Entry) check(leadsOut func(*Entry)) (skip bool, err error) {
	original := e.Name
	if e.Name, err = cleanName(e.Name); err != nil {
		return false, err
	}
	if e.Name == "" {
		if e.Kind != Dir {
			return false, Refuse(original, "it stands for the directory itself and is none")
		}
		return true, nil
	}
	switch e.Kind {
	case Symlink:
		err := checkTarget(e.Name, e.Target)
		if err != nil && leadsOut != nil {
			leadsOut(e)
			return true, nil
		}
		return false, err
	case Hardlink:
		target, err := cleanName(e.Target)
		if err != nil || target == "" || target == e.Name {
			return false, Refuse(e.Name, "it is a hard link to %q, out of the directory", e.Target)
		}
		e.Target = target
	}
	return false, nil
}
