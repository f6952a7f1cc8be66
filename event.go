package ringfence

import "time"

// EventType says what happened.
type EventType string

// The types of events.
const (
	EventCreated         EventType = "created"          // template
	EventStarted         EventType = "started"          //
	EventPaused          EventType = "paused"           //
	EventResumed         EventType = "resumed"          //
	EventSnapshotted     EventType = "snapshotted"      // snapshot, name
	EventEnded           EventType = "ended"            // state, reason, detail
	EventProcessStarted  EventType = "process_started"  // process, pid, command, tag
	EventProcessEnded    EventType = "process_ended"    // process, exit_code, signal, reason
	EventFileWritten     EventType = "file_written"     // path, size
	EventFileRemoved     EventType = "file_removed"     // path
	EventFileRenamed     EventType = "file_renamed"     // path, to
	EventFileCopied      EventType = "file_copied"      // path, to
	EventFileChanged     EventType = "file_changed"     // path: mode, owner or metadata
	EventDirectoryMade   EventType = "directory_made"   // path
	EventArchiveUnpacked EventType = "archive_unpacked" // path, files
	EventPortPublished   EventType = "port_published"   // port
	EventPortUnpublished EventType = "port_unpublished" // port
	EventGap             EventType = "gap"              // reason: an EventGapReason; events before it are not known
	MaxEventCommand                = 256                // bytes of a command in an event; what is longer is cut
)

// Reasons of a gap.
const (
	GapDaemonRestarted = "daemon_restarted" // events are kept in memory, and another process had them
	GapOverflow        = "overflow"         // more came than are kept
)

// Event is one thing that happened to a sandbox. The events of a project are ordered;
// those of a sandbox are among them.
type Event struct {
	ID        string // <epoch>-<n>: n grows in a project, the epoch changes with the server's process
	At        time.Time
	Type      EventType
	SandboxID string         // empty for a gap of a whole project
	Data      map[string]any // strings, numbers, booleans; what each type has stands beside it
}
