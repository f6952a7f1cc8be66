package guestproto

import (
	"encoding/json"
	"net/netip"
)

// Hello opens a session. Nonce is 16 random bytes in hex.
type Hello struct {
	Nonce    string `json:"nonce"`
	Versions []int  `json:"versions"` // that the host can speak
}

// HelloAck answers a Hello.
type HelloAck struct {
	Nonce        string   `json:"nonce"`
	Version      int      `json:"version"`            // chosen; 0: no common one
	Versions     []int    `json:"versions,omitempty"` // that the agent speaks
	BootID       string   `json:"boot_id"`            // random, made when the agent started; survives a restore
	Capabilities []string `json:"capabilities"`
}

// Open starts a call.
type Open struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

// Result ends a call. Exactly one of Error and Value is set.
type Result struct {
	Error *Error          `json:"error,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
}

// Error is a failed call. Code is one of the root package's file and argument
// codes; the host maps anything else to internal.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Field   string `json:"field,omitempty"` // the argument at fault: "user", "cwd", "path", …
}

// The methods.
const (
	MethodIdentity     = "identity"         // Identity → {}: who this sandbox is; also after a restore
	MethodFreeze       = "freeze"           // {} → {}: stop sending until the next Hello; before a checkpoint
	MethodStats        = "stats"            // {} → Stats
	MethodFileRead     = "file.read"        // FileRead; Event FileInfo first; Data guest → host; Result {}
	MethodFileWrite    = "file.write"       // FileWrite; Data host → guest, End; Result FileInfo
	MethodFileStat     = "file.stat"        // FilePath → FileInfo
	MethodFileList     = "file.list"        // FileList; Data guest → host: one JSON FileInfo a line; Result {}
	MethodFileMkdir    = "file.mkdir"       // FileMkdir → FileInfo
	MethodFileRename   = "file.rename"      // FileRename → FileInfo
	MethodFileRemove   = "file.remove"      // FileRemove → {}
	MethodPortDial     = "port.dial"        // PortDial; Event PortEvent when connected; Data both ways, End = half-close; Event PortEvent with End; Result {}
	MethodPortList     = "port.list"        // {} → PortList
	MethodConnections  = "port.connections" // {} → ConnectionList
	MethodFileMode     = "file.mode"        // FileMode → FileInfo
	MethodFileCopy     = "file.copy"        // FileCopy → FileInfo
	MethodFileSearch   = "file.search"      // FileSearch; Data guest → host: one JSON FileMatch a line; Result FileSearched
	MethodFileChecksum = "file.checksum"    // FileChecksum → FileSum
	MethodFileMetadata = "file.metadata"    // FileMetadata → FileInfo
	MethodFileWatch    = "file.watch"       // FileWatch; Event {} when it watches; Data guest → host: one JSON FileChange a line; Result {} when what is watched is gone
	MethodArchiveRead  = "archive.read"     // ArchiveRead; Event {} when it begins; Data guest → host; Result {}
	MethodArchiveWrite = "archive.write"    // ArchiveWrite; Data host → guest, End; Result ArchiveWritten
)

// Identity is what a sandbox is told about itself.
type Identity struct {
	SandboxID string            `json:"sandbox_id"`
	Hostname  string            `json:"hostname"`
	Env       map[string]string `json:"env"`      // template's and sandbox's, merged
	User      string            `json:"user"`     // default user of commands
	WorkDir   string            `json:"work_dir"` // default working directory
	MaxProcs  int               `json:"max_procs"`
	// MemoryBytes is the sandbox's memory; the guard acts before it is used up.
	MemoryBytes int64 `json:"memory_bytes"`
	VCPU        int   `json:"vcpu"`
	// DNS says where names are looked up; nil leaves that as it is.
	DNS *DNS `json:"dns,omitempty"`
}

// DNS is what stands in /etc/resolv.conf.
type DNS struct {
	Servers []string `json:"servers"`
	Search  []string `json:"search,omitempty"`
}

// Stats is what the agent knows about the sandbox.
type Stats struct {
	Processes      int   `json:"processes"`
	MemTotalBytes  int64 `json:"mem_total_bytes"`
	MemFreeBytes   int64 `json:"mem_free_bytes"`
	DiskTotalBytes int64 `json:"disk_total_bytes"`
	DiskFreeBytes  int64 `json:"disk_free_bytes"`
}

// FilePath names a file and who acts on it. Names are bytes and JSON is text: a
// path that is not UTF-8 is given in PathBytes, and Path is then ignored.
type FilePath struct {
	Path      string `json:"path"`
	PathBytes []byte `json:"path_bytes,omitempty"`
	User      string `json:"user,omitempty"` // who acts, by name or number; root when empty
}

// FileRead reads a regular file or a part of it.
type FileRead struct {
	FilePath
	Offset int64 `json:"offset,omitempty"`
	Length int64 `json:"length,omitempty"` // 0: to the end; cut at the end of the file
}

// FileWrite replaces a file atomically; parents are created.
type FileWrite struct {
	FilePath
	// Owner will own the file and created parents. When empty, an existing file keeps its
	// owner if the acting user may give files away, and all else belongs to User,
	// or without one to the identity's user.
	Owner string `json:"owner,omitempty"`
	Mode  uint32 `json:"mode,omitempty"` // permission bits; 0: keep an existing file's, else 0644
	Sync  bool   `json:"sync,omitempty"` // fsync before the rename
	// IfMatch: only replace the file that has this etag. Create: only make a new file.
	// Either way precondition_failed otherwise, and the other calls of this protocol
	// cannot come between the look and the replacement.
	IfMatch string `json:"if_match,omitempty"`
	Create  bool   `json:"create,omitempty"`
}

// FileList lists a directory, in the order of names; a directory comes right before
// what is in it. Depth 1 is its entries, 0 means 1.
type FileList struct {
	FilePath
	Depth int `json:"depth,omitempty"`
	// Limit is how many entries come at most; 0: all.
	Limit int `json:"limit,omitempty"`
	// After is the last entry that the caller has, relative to the directory.
	After    []byte `json:"after,omitempty"`
	Metadata bool   `json:"metadata,omitempty"` // with each entry's
}

// FileMkdir makes a directory and its parents. An existing directory is no error.
type FileMkdir struct {
	FilePath
	Owner string `json:"owner,omitempty"`
	Mode  uint32 `json:"mode,omitempty"` // 0: 0755
}

// FileRename moves a file or a directory; it replaces an existing file.
type FileRename struct {
	FilePath
	To      string `json:"to"`
	ToBytes []byte `json:"to_bytes,omitempty"` // for a name that is not UTF-8
}

// FileRemove removes a file, or a directory with all that is in it.
type FileRemove struct {
	FilePath
	Recursive bool `json:"recursive,omitempty"`
}

// FileInfo describes a file. Names are bytes and JSON is text: a name that is
// not UTF-8 is given in PathBytes too, in base64.
type FileInfo struct {
	Path      string `json:"path"`
	PathBytes []byte `json:"path_bytes,omitempty"`
	Type      string `json:"type"` // file, directory, symlink, other
	Size      int64  `json:"size"`
	Mode      uint32 `json:"mode"` // permission bits with setuid, setgid, sticky
	UID       uint32 `json:"uid"`
	GID       uint32 `json:"gid"`
	Owner     string `json:"owner"` // name, or the number where there is none
	Group     string `json:"group"`
	ModTime   int64  `json:"mod_time"` // Unix microseconds
	Target    string `json:"target,omitempty"`
	// TargetBytes is set when the target is not UTF-8.
	TargetBytes []byte `json:"target_bytes,omitempty"`
	// ETag changes whenever the file does: its content, its permissions, or which file it is.
	ETag string `json:"etag,omitempty"`
	// Metadata is the extended attributes of the user's class that are text, without
	// "user."; only where it was asked for.
	Metadata map[string]string `json:"metadata,omitempty"`
}

// PortDial connects to a port of the sandbox: to its 127.0.0.1 or ::1, or to another
// address of its own on which somebody listens.
type PortDial struct {
	Port int `json:"port"`
}

// PortEvent says that the connection stands, or that the program will send no more.
type PortEvent struct {
	Address string `json:"address,omitempty"` // that was connected to
	End     bool   `json:"end,omitempty"`
}

// PortList is what listens in the sandbox.
type PortList struct {
	Ports     []PortInfo `json:"ports"`
	Truncated bool       `json:"truncated,omitempty"`
}

// ConnectionList is the TCP connections of the sandbox to others, at most MaxConnections.
type ConnectionList struct {
	Connections []Connection `json:"connections"`
}

// MaxConnections bounds a ConnectionList.
const MaxConnections = 4096

// Connection is between an address of the sandbox and another one.
type Connection struct {
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
}

// PortInfo is a TCP port that somebody listens on.
type PortInfo struct {
	Port    int    `json:"port"`
	Address string `json:"address"`
	PID     int    `json:"pid,omitempty"` // as programs in the sandbox see it; 0: not known
	Command string `json:"command,omitempty"`
}
