package guest_test

import (
	"fmt"
	"testing"

	"ringfence.dev/ringfence/internal/guestproto"
)

// Entries of several owners side by side: each has the names of its own.
func TestListOwners(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		dir := b.place(t)
		want := map[string]uint32{}
		for i, owner := range []uint32{0, 1000, 1000, 0, 4321, 1000} {
			p := fmt.Sprintf("%s/%d", dir, i)
			b.write(t, guestproto.FileWrite{FilePath: at(p), Owner: fmt.Sprint(owner)}, []byte("x"))
			want[p] = owner
		}
		err := b.conn.ListFiles(testContext(t), guestproto.FileList{FilePath: at(dir)}, func(i guestproto.FileInfo) error {
			stat, err := b.conn.StatFile(testContext(t), at(i.Path))
			if err != nil || i.UID != want[i.Path] || i.Owner != stat.Owner || i.Group != stat.Group {
				t.Errorf("%s is listed as %d %q %q, and is %d %q %q: %v", i.Path, i.UID, i.Owner, i.Group, want[i.Path], stat.Owner, stat.Group, err)
			}
			delete(want, i.Path)
			return nil
		})
		if err != nil || len(want) > 0 {
			t.Errorf("not listed: %v, %v", want, err)
		}
	})
}
