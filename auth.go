package ringfence

import "time"

// DefaultProject is the project that exists from the first start. Its id is its
// name, so that a key made before any other project was thought of keeps working.
const DefaultProject = "default"

// Project owns sandboxes and keys. Nothing is reachable across projects.
type Project struct {
	ID        string
	Name      string
	CreatedAt time.Time
}

// Key opens the control plane and every data plane of one project. Only the
// hash of its text is kept.
type Key struct {
	ID         string
	Project    string
	Name       string
	Hash       [32]byte // HashSecret of the canonical spelling
	CreatedAt  time.Time
	LastUsedAt time.Time // zero until it was used; may lag by a minute
}

// MaxKeyName is the longest name of a key, in bytes.
const MaxKeyName = 128

// Principal is who a request came from. Exactly one of KeyID and SandboxID is set.
type Principal struct {
	Project   string
	KeyID     string // an API key
	SandboxID string // a sandbox's access token: the data plane of that sandbox and nothing else
}
