// Package driver is the contract between the engine and what isolates a sandbox.
// It holds the interface, the types it speaks, and in drivertest the suite that
// every driver has to pass.
package driver

import (
	"context"
	"io"
	"os"

	"ringfence.dev/ringfence"
)

// Capabilities says what a driver can do. The conformance suite tests what is
// declared, and that what is not declared is refused with CodeNotYetSupported.
type Capabilities struct {
	Isolation  string // "gvisor", "microvm", "none"
	Checkpoint bool   // Pause, Resume, Checkpoint, Restore
	Processes  bool   // what runs is in a checkpoint, and goes on after a restore
	Limits     bool   // CPU, memory, process and disk limits are enforced
	Rescue     bool   // Instance.Rescue works
	Recover    bool   // instances outlive the daemon's process
	Network    bool   // Instance.Network works
	// Build names what a checkpoint depends on beside its spec: the isolation's version
	// and flags, and the guest agent. A checkpoint of another build may be refused.
	Build string
}

// Spec is what a driver needs to start an instance.
type Spec struct {
	ID        string // sandbox id, 20 of [a-z0-9]
	ImagePath string // EROFS image of the root file system, absolute and content-addressed
	Hostname  string
	Size      ringfence.Size
	// MaxProcs bounds the processes inside, root's included; 0 is the driver's default.
	MaxProcs int
}

// Exit says how an instance ended.
type Exit struct {
	Reason ringfence.Reason // ReasonOOM, ReasonCrashed or ReasonKilled
	Detail string           // one sentence, safe to show
}

// Usage is what an instance uses, seen from the host.
type Usage struct {
	MemoryBytes int64 // of its host processes, without files of the host
	CPUNanos    int64 // CPU time since it started
	DiskBytes   int64 // of the writable layer
}

// Driver makes instances. All methods may be called concurrently.
type Driver interface {
	Name() string
	Capabilities() Capabilities

	// Create starts an instance from its image. It returns when the host side is up;
	// the agent inside may need some more milliseconds. A failed Create leaves nothing behind.
	Create(ctx context.Context, spec Spec) (Instance, error)

	// Restore starts an instance under spec.ID from what Checkpoint left in dir. spec.Size
	// and spec.ImagePath must be those of the checkpointed instance.
	Restore(ctx context.Context, spec Spec, dir string) (Instance, error)

	// Recover finds the instances that a former process of the daemon left running, and
	// ends and removes the leftovers of those that are not: processes, namespaces,
	// control groups, mounts and files. It is called once, before anything else.
	Recover(ctx context.Context) ([]Instance, error)

	// Collect removes what was kept for checkpoints alone that are gone: all that are left
	// are in these directories.
	Collect(checkpoints []string) error

	// Close releases what the driver holds in this process. Instances go on.
	Close() error
}

// Instance is one running sandbox. All methods may be called concurrently.
type Instance interface {
	ID() string

	// Link opens the byte pipes to the agent. One link is open at a time: a second call
	// closes the first. Reads and writes honour Close.
	Link(ctx context.Context) (io.ReadWriteCloser, error)

	// Rescue runs argv as root inside by another way than the link, for when the agent
	// is stuck, and returns its exit status and at most 64 KiB of its output.
	Rescue(ctx context.Context, argv []string) (status int, output []byte, err error)

	// Pause stops all that runs inside, and Resume lets it go on. Both are idempotent, also
	// after a daemon that died during one of them.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error

	// Checkpoint saves a paused instance in dir, which must be empty, and leaves it
	// paused. A failed Checkpoint loses nothing but the files in dir.
	Checkpoint(ctx context.Context, dir string) error

	// Kill ends the instance and removes all that it had. It is idempotent, and works
	// on one that hangs, that died, or that is being killed.
	Kill(ctx context.Context) error

	// Done is closed when the instance's host process has ended, for whatever reason.
	Done() <-chan struct{}
	// Exit says how; valid once Done is closed.
	Exit() Exit

	Usage(ctx context.Context) (Usage, error)

	// Network returns the host's end of the instance's network link, which its caller
	// then owns: each read and write is one Ethernet frame. Only one may be open at a
	// time; after it is closed, or its process has ended, the link can be opened again.
	// Until somebody reads it, nothing that the guest sends goes anywhere.
	Network(ctx context.Context) (*os.File, error)
}
