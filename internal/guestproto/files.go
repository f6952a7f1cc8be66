package guestproto

// FileMode changes the permissions and the owner of a file; links are followed.
type FileMode struct {
	FilePath
	Mode  *uint32 `json:"mode,omitempty"`
	Owner string  `json:"owner,omitempty"` // empty: as it is
	Group string  `json:"group,omitempty"` // empty: as it is
	// Recursive: also all that is in a directory; links in it are not followed, and get
	// the owner themselves.
	Recursive bool `json:"recursive,omitempty"`
}

// FileCopy copies a file, which replaces another one at once, or a directory, which
// must not exist yet. Links are copied as links.
type FileCopy struct {
	FilePath
	To        string `json:"to"`
	ToBytes   []byte `json:"to_bytes,omitempty"`
	Recursive bool   `json:"recursive,omitempty"` // needed for a directory
	Owner     string `json:"owner,omitempty"`     // of what is new; empty: as for FileWrite
}

// FileSearch searches a directory, or one file.
type FileSearch struct {
	FilePath
	// Name is a pattern with *, ?, [] for the last element of a path, or with a slash in
	// it for the path below the directory, where ** is any number of directories.
	Name string `json:"name,omitempty"`
	// Content is what a line of the file holds: text, or a regular expression of RE2.
	Content    string `json:"content,omitempty"`
	Regex      bool   `json:"regex,omitempty"`
	IgnoreCase bool   `json:"ignore_case,omitempty"`
	Depth      int    `json:"depth,omitempty"` // 0: any
	Limit      int    `json:"limit"`
}

// FileMatch is something that a search found: a file, or with a Line a place in one.
type FileMatch struct {
	Path      string `json:"path"`
	PathBytes []byte `json:"path_bytes,omitempty"`
	Type      string `json:"type"`
	Line      int64  `json:"line,omitempty"`   // from 1
	Column    int64  `json:"column,omitempty"` // in bytes, from 1
	Text      string `json:"text,omitempty"`   // of the line, or a part of it around the place
}

// FileSearched ends a search.
type FileSearched struct {
	Truncated bool `json:"truncated,omitempty"` // there is more than Limit
}

// FileChecksum asks for the checksum of a file's content.
type FileChecksum struct {
	FilePath
	Algorithm string `json:"algorithm"` // sha256, sha512, sha1, md5, crc32c
}

// FileSum is a checksum in hex, and the file that it is of.
type FileSum struct {
	Checksum string `json:"checksum"`
	Size     int64  `json:"size"` // bytes that were summed up
	ETag     string `json:"etag"`
}

// FileMetadata changes extended attributes of the user's class.
type FileMetadata struct {
	FilePath
	Set    map[string]string `json:"set,omitempty"`
	Remove []string          `json:"remove,omitempty"`
}

// FileWatch watches a directory, or the name of a file.
type FileWatch struct {
	FilePath
	Recursive bool `json:"recursive,omitempty"`
}

// The types of a FileChange.
const (
	ChangeCreate     = "create"
	ChangeModify     = "modify"
	ChangeRemove     = "remove"
	ChangeRenameFrom = "rename_from"
	ChangeRenameTo   = "rename_to"
	ChangeAttrib     = "attrib"
	ChangeOverflow   = "overflow" // changes were lost before this one
)

// FileChange is something that happened to a file that is watched.
type FileChange struct {
	Type      string `json:"type"`
	Path      string `json:"path"`
	PathBytes []byte `json:"path_bytes,omitempty"`
	IsDir     bool   `json:"is_dir,omitempty"`
	Cookie    uint32 `json:"cookie,omitempty"` // the same for both halves of a rename
}

// ArchiveRead asks for a directory, or for one file, as an archive. Names are relative
// to the directory.
type ArchiveRead struct {
	FilePath
	Format string `json:"format"` // tar, tar.gz, zip
}

// ArchiveWrite unpacks an archive into a directory, which is made with its parents.
type ArchiveWrite struct {
	FilePath
	Format string `json:"format"`
	Owner  string `json:"owner,omitempty"` // of what is new; empty: as for FileWrite
}

// ArchiveWritten is what was unpacked.
type ArchiveWritten struct {
	Files       int64 `json:"files"` // links among them
	Directories int64 `json:"directories"`
	Bytes       int64 `json:"bytes"`
}
