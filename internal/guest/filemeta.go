package guest

import (
	"bytes"
	"errors"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

const (
	// attributePrefix is the class of extended attributes that belong to users.
	attributePrefix = "user."
	// maxKey is the longest key of metadata, in bytes: the kernel takes 255 with the prefix.
	maxKey = 250
	// maxMetadata bounds the metadata of one file, keys and values, in bytes.
	maxMetadata = 32 << 10
)

// metadataOf returns the metadata of a file or directory. It runs on a file thread.
// What is no text, or too much, is left out; no file system has to have any.
func metadataOf(p, kind string) map[string]string {
	if kind != "file" && kind != "directory" {
		return nil // only those can have some
	}
	names := make([]byte, maxMetadata)
	n, err := unix.Listxattr(p, names)
	if err != nil || n == 0 {
		return nil
	}
	metadata := map[string]string{}
	value := make([]byte, maxMetadata)
	total := 0
	for name := range bytes.SplitSeq(names[:n], []byte{0}) {
		key, ok := strings.CutPrefix(string(name), attributePrefix)
		if !ok || key == "" || !utf8.ValidString(key) {
			continue
		}
		n, err := unix.Getxattr(p, string(name), value)
		if err != nil || !utf8.Valid(value[:n]) || total+len(key)+n > maxMetadata {
			continue
		}
		total += len(key) + n
		metadata[key] = string(value[:n])
	}
	return metadata
}

func changeMetadata(a *agent, _ *channel, f guestproto.FileMetadata) (any, error) {
	p, u, err := a.target(f.FilePath)
	if err != nil {
		return nil, err
	}
	total := 0
	for key, value := range f.Set {
		if err := checkKey("set", key); err != nil {
			return nil, err
		}
		total += len(key) + len(value)
	}
	if total > maxMetadata {
		return nil, fail(codeInvalid, "set", "the metadata has %d bytes, at most %d are possible", total, maxMetadata)
	}
	for _, key := range f.Remove {
		if err := checkKey("remove", key); err != nil {
			return nil, err
		}
	}
	var info guestproto.FileInfo
	err = a.ns.onFileThread(u, func() error {
		for key, value := range f.Set {
			if err := unix.Setxattr(p, attributePrefix+key, []byte(value), 0); err != nil {
				return attributeError(err)
			}
		}
		for _, key := range f.Remove {
			if err := unix.Removexattr(p, attributePrefix+key); err != nil && err != unix.ENODATA {
				return attributeError(err)
			}
		}
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err != nil {
			return err
		}
		info = describe(p, &st, "", a.ownersOf(&st))
		info.Metadata = metadataOf(p, info.Type) // of a link's target, which carries it
		return nil
	})
	if err != nil {
		return nil, fileError("change the metadata of", p, err)
	}
	return info, nil
}

func checkKey(field, key string) error {
	if key == "" || len(key) > maxKey || !utf8.ValidString(key) || strings.IndexByte(key, 0) >= 0 {
		return fail(codeInvalid, field, "%q is no key of metadata: it has to be text of 1 to %d bytes", key, maxKey)
	}
	return nil
}

func attributeError(err error) error {
	switch {
	case errors.Is(err, unix.ENOTSUP):
		return fail(codeInvalid, "path", "what is there cannot carry metadata")
	case errors.Is(err, unix.E2BIG), errors.Is(err, unix.ERANGE):
		return fail(codeInvalid, "set", "a value is too long")
	}
	return err
}
