package guest_test

import (
	"archive/tar"
	"bytes"
	"testing"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

// What the API makes belongs to the sandbox's user unless somebody else is named, so that
// the commands there can work with it.
func TestFileOwner(t *testing.T) {
	b := gvisorBed(t, ringfence.Size{VCPU: 2, MemoryMiB: 512, DiskMiB: 512})
	b.identify(t, guestproto.Identity{Hostname: "box", User: "user", WorkDir: "/home/user", MaxProcs: 200, VCPU: 2, MemoryBytes: 512 << 20})
	const user = 1000
	ctx := testContext(t)
	dir := "/home/user/made/by"
	owned := func(what string, got guestproto.FileInfo, err error, uid uint32) {
		t.Helper()
		if err != nil || got.UID != uid || got.GID != uid {
			t.Errorf("%s: %+v %v, want the owner %d", what, got, err, uid)
		}
	}
	owned("a new file", b.write(t, guestproto.FileWrite{FilePath: at(dir + "/f")}, []byte("x")), nil, user)
	owned("its directory", b.stat(t, dir), nil, user)
	info, err := b.conn.Mkdir(ctx, guestproto.FileMkdir{FilePath: at(dir + "/d")})
	owned("a new directory", info, err, user)
	info, err = b.conn.CopyFile(ctx, guestproto.FileCopy{FilePath: at("/etc/hostname"), To: dir + "/copy"})
	owned("a copy", info, err, user)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	w.WriteHeader(&tar.Header{Name: "sub/in", Mode: 0o644, Size: 1, Uid: 7, Gid: 7})
	w.Write([]byte("x"))
	w.Close()
	if _, err := b.conn.WriteArchive(ctx, guestproto.ArchiveWrite{FilePath: at(dir + "/tree"), Format: "tar"}, &archive); err != nil {
		t.Fatal(err)
	}
	owned("an unpacked file", b.stat(t, dir+"/tree/sub/in"), nil, user)
	owned("an unpacked directory", b.stat(t, dir+"/tree/sub"), nil, user)
	if r := b.run(t, guestproto.ProcessStart{Shell: "echo more >>f && rm copy tree/sub/in && touch d/x", WorkDir: dir}); r.exit.ExitCode != 0 {
		t.Errorf("its commands cannot work with them: %s", r.stderr)
	}

	// Who is named counts, and what is there keeps its owner.
	owned("with an owner", b.write(t, guestproto.FileWrite{FilePath: at(dir + "/o"), Owner: "root"}, nil), nil, 0)
	owned("with a user", b.write(t, guestproto.FileWrite{FilePath: guestproto.FilePath{Path: dir + "/u", User: "root"}}, nil), nil, 0)
	owned("over root's", b.write(t, guestproto.FileWrite{FilePath: at(dir + "/u")}, nil), nil, 0)
	owned("where only root may", b.write(t, guestproto.FileWrite{FilePath: at("/opt/x")}, nil), nil, user)

	// A template whose user is not there has root's files.
	b.identify(t, guestproto.Identity{Hostname: "box", User: "nobody-at-all", MaxProcs: 200, VCPU: 2, MemoryBytes: 512 << 20})
	owned("without the user", b.write(t, guestproto.FileWrite{FilePath: at(dir + "/n")}, nil), nil, 0)
}
