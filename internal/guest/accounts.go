package guest

import (
	"bufio"
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// account is a user of the sandbox.
type account struct {
	name   string
	uid    uint32
	gid    uint32
	groups []uint32 // supplementary
	home   string
	shell  string
}

// maxAccountFile bounds /etc/passwd and /etc/group, in bytes: commands may write them.
const maxAccountFile = 4 << 20

// accounts reads /etc/passwd and /etc/group, and reads them again when they changed.
type accounts struct {
	mu     sync.Mutex
	passwd cachedFile // guarded by mu
	group  cachedFile // guarded by mu
}

type cachedFile struct {
	stamp unix.Stat_t
	lines [][]string // split at the colons
}

func (c *cachedFile) refresh(path string) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		*c = cachedFile{}
		return
	}
	if c.lines != nil && st.Ino == c.stamp.Ino && st.Size == c.stamp.Size && st.Mtim == c.stamp.Mtim && st.Ctim == c.stamp.Ctim {
		return
	}
	*c = cachedFile{stamp: st, lines: [][]string{}}
	if st.Size > maxAccountFile || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return
	}
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		c.lines = append(c.lines, strings.Split(sc.Text(), ":"))
	}
}

// lookup finds a user by name or number; root when name is empty. field names the
// argument for the error.
func (a *accounts) lookup(name, field string) (account, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.passwd.refresh("/etc/passwd")
	if name == "" {
		name = "root"
	}
	number, numeric := parseID(name)
	var found *account
	for _, f := range a.passwd.lines {
		if len(f) < 7 {
			continue
		}
		uid, ok1 := parseID(f[2])
		gid, ok2 := parseID(f[3])
		if !ok1 || !ok2 {
			continue
		}
		if f[0] == name || numeric && uid == number {
			found = &account{name: f[0], uid: uid, gid: gid, home: f[5], shell: f[6]}
			break
		}
	}
	switch {
	case found != nil:
	case name == "root" || numeric && number == 0:
		found = &account{name: "root", home: "/root"}
	case numeric:
		found = &account{name: name, uid: number, gid: number}
	default:
		return account{}, fail(codeInvalid, field, "there is no user %q in the sandbox", name)
	}
	if found.home == "" {
		found.home = "/"
	}
	if found.shell == "" {
		found.shell = "/bin/sh"
	}
	a.group.refresh("/etc/group")
	for _, f := range a.group.lines {
		if len(f) < 4 {
			continue
		}
		gid, ok := parseID(f[2])
		if ok && gid != found.gid && slices.Contains(strings.Split(f[3], ","), found.name) && len(found.groups) < 1024 {
			found.groups = append(found.groups, gid)
		}
	}
	return *found, nil
}

// names returns the name of a user and of a group, or the number where there is none.
func (a *accounts) names(uid, gid uint32) (owner, group string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.passwd.refresh("/etc/passwd")
	a.group.refresh("/etc/group")
	return nameOf(a.passwd.lines, uid), nameOf(a.group.lines, gid)
}

// nameOf searches a file in which the number stands in the third field.
func nameOf(lines [][]string, id uint32) string {
	number := strconv.FormatUint(uint64(id), 10)
	for _, f := range lines {
		if len(f) > 2 && f[2] == number && f[0] != "" && len(f[0]) <= 255 {
			return f[0]
		}
	}
	return number
}

// parseID parses a user's or group's number. The highest one means "none".
func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n != 1<<32-1
}

// groupID finds a group by name or number.
func (a *accounts) groupID(name, field string) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.group.refresh("/etc/group")
	for _, f := range a.group.lines {
		if len(f) < 3 || f[0] != name {
			continue
		}
		if gid, ok := parseID(f[2]); ok {
			return int(gid), nil
		}
	}
	if gid, ok := parseID(name); ok {
		return int(gid), nil
	}
	return 0, fail(codeInvalid, field, "there is no group %q in the sandbox", name)
}
