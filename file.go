package ringfence

import "time"

// FileType is what a path of a sandbox names.
type FileType string

// The types.
const (
	TypeFile      FileType = "file"
	TypeDirectory FileType = "directory"
	TypeSymlink   FileType = "symlink"
	TypeOther     FileType = "other"
)

// FileInfo describes a file of a sandbox. Path and Target are bytes: whoever makes
// text of them has to expect names that are not UTF-8.
type FileInfo struct {
	Path         string
	Type         FileType
	Size         int64
	Mode         uint32 // permission bits with setuid, setgid and sticky
	UID, GID     uint32
	Owner, Group string // names, or the numbers where there are none
	ModifiedAt   time.Time
	Target       string // of a symbolic link
	// ETag changes whenever the file does: its content, its permissions, or which file it is.
	ETag string
	// Metadata is its extended attributes of the user's class that are text, without
	// "user."; only where it was asked for.
	Metadata map[string]string
}

// FileMatch is something that a search found: a file, or with a Line a place in one.
type FileMatch struct {
	Path   string
	Type   FileType
	Line   int64  // from 1; 0: the file itself was searched for
	Column int64  // in bytes, from 1
	Text   string // of the line, or of the part of a long one around the place
}

// FileChange is something that happened to a file that is watched.
type FileChange struct {
	Type  ChangeType
	Path  string // its bytes
	IsDir bool
	// Cookie is the same number in both halves of a rename; 0 in other changes.
	Cookie uint32
}

// ChangeType is what happened to a file.
type ChangeType string

// The types of a change.
const (
	ChangeCreate     ChangeType = "create"
	ChangeModify     ChangeType = "modify"
	ChangeRemove     ChangeType = "remove"
	ChangeRenameFrom ChangeType = "rename_from"
	ChangeRenameTo   ChangeType = "rename_to"
	ChangeAttrib     ChangeType = "attrib"
	ChangeOverflow   ChangeType = "overflow" // changes were lost before this one
)

// FileChecksum is a checksum of a file in hex, as the sandbox says.
type FileChecksum struct {
	Algorithm string
	Checksum  string
	Size      int64 // bytes that were summed up
	ETag      string
}

// ArchiveCounts is what was unpacked from an archive.
type ArchiveCounts struct {
	Files       int64 // links among them
	Directories int64
	Bytes       int64
}
