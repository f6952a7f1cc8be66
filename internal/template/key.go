package template

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"runtime"
	"strings"

	"ringfence.dev/ringfence"
)

// builderVersion is part of every content key: a change of what the builder does
// with the same recipe has to change it.
const builderVersion = "1"

// Key returns the content key of a recipe: the hash of its files, of the builder's
// version, of the machine's architecture and of its base's key. Two builds with
// one key would make the same template, so the second is not made.
func (s Store) Key(r *Recipe) (string, error) {
	return s.key(r, nil)
}

func (s Store) key(r *Recipe, seen []string) (string, error) {
	for _, name := range seen {
		if name == r.Name {
			return "", ringfence.Errorf(ringfence.CodeInvalidArgument, "the bases of %q go in a circle: %s", r.Name, strings.Join(append(seen, r.Name), " on "))
		}
	}
	h := sha256.New()
	part(h, "ringfence template", builderVersion, runtime.GOARCH)
	if r.Base.Template != "" {
		base, err := s.baseKey(r.Base.Template, append(seen, r.Name))
		if err != nil {
			return "", err
		}
		part(h, "base", base)
	}
	err := fs.WalkDir(r.files, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			return nil
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a directory", p)
		}
		data, err := fs.ReadFile(r.files, p)
		if err != nil {
			return err
		}
		part(h, "file", p, string(data))
		return nil
	})
	if err != nil {
		return "", ringfence.Errorf(ringfence.CodeInvalidArgument, "cannot read the files of recipe %q: %w", r.Name, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// baseKey prefers the binary's own recipes: a base that they name is built when it
// is missing or of another version. Any other base has to be there.
func (s Store) baseKey(name string, seen []string) (string, error) {
	recipe, err := Load(name)
	if err == nil {
		return s.key(recipe, seen)
	}
	if ringfence.CodeOf(err) != ringfence.CodeTemplateNotFound {
		return "", err
	}
	t, err := s.Lookup(name)
	if err != nil {
		var e *ringfence.Error
		if errors.As(err, &e) && e.Code == ringfence.CodeTemplateNotFound {
			e.Message = fmt.Sprintf("base.template %q is neither built in nor built on this host", name)
		}
		return "", err
	}
	return t.Recipe, nil
}

// part adds strings to h so that no two lists of them give the same bytes.
func part(h hash.Hash, parts ...string) {
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s,", len(p), p)
	}
}
