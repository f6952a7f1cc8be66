package ringfence

import "time"

// Template is a root file system and how to start in it.
type Template struct {
	Name      string
	Aliases   []string
	Image     string // SHA-256 of the EROFS image, in hex
	ImagePath string // absolute, content-addressed and stable: snapshots name it
	Env       map[string]string
	User      string // default user of commands
	WorkDir   string // default working directory of commands
	Ready     string // shell command that has to succeed before sandboxes are handed out; empty: none
	Size      Size
	Recipe    string // SHA-256 of the recipe that made it, in hex
	BuiltAt   time.Time
}
