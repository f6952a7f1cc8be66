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
}
