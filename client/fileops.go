package client

import (
	"context"
	"encoding/base64"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"time"

	"ringfence.dev/ringfence"
)

// WalkOptions says what Walk lists. The zero value is a directory's own entries.
type WalkOptions struct {
	Depth    int  // 1, the directory's own entries, to 64; 0 is 1
	Metadata bool // with each entry's
	PageSize int  // entries asked for at a time, up to 10,000; 0: 1000
}

// Walk lists a directory, page by page, in the order of names; a directory comes before
// what is in it. An error is the last that comes. Errors: as List.
func (f Files) Walk(ctx context.Context, path string, o WalkOptions) iter.Seq2[FileInfo, error] {
	return func(yield func(FileInfo, error) bool) {
		query := f.query(path)
		if o.Depth != 0 {
			query.Set("depth", strconv.Itoa(o.Depth))
		}
		if o.Metadata {
			query.Set("metadata", "true")
		}
		if o.PageSize == 0 {
			o.PageSize = 1000
		}
		query.Set("limit", strconv.Itoa(o.PageSize))
		for {
			var w struct {
				Entries    []wireFile `json:"entries"`
				NextCursor string     `json:"next_cursor"`
			}
			if err := f.s.c.call(ctx, request{method: http.MethodGet, path: f.s.path("/files/list"), query: query, idempotent: true}, &w); err != nil {
				yield(FileInfo{}, err)
				return
			}
			for i := range w.Entries {
				info, err := w.Entries[i].info()
				if !yield(info, err) || err != nil {
					return
				}
			}
			if w.NextCursor == "" {
				return
			}
			query.Set("cursor", w.NextCursor)
		}
	}
}

// CopyOptions says how files are copied within a sandbox.
type CopyOptions struct {
	Recursive bool   // needed for a directory, which must not exist yet
	Owner     string // of what is new; empty: the user named by User, or else the sandbox's user
}

// Copy copies a file within the sandbox, in the place of another one at once, or a
// directory. Errors: file_not_found, is_directory, file_exists, file_permission, disk_full.
func (f Files) Copy(ctx context.Context, from, to string, o CopyOptions) (FileInfo, error) {
	paths := map[string]string{}
	putPath(paths, "from", from)
	putPath(paths, "to", to)
	f.who(paths, o.Owner)
	return f.post(ctx, "/files/copy", mixed(paths, "recursive", o.Recursive), "copy a file")
}

// mixed adds a value to a body that is text otherwise.
func mixed(body map[string]string, name string, value any) map[string]any {
	out := map[string]any{name: value}
	for k, v := range body {
		out[k] = v
	}
	return out
}

// ModeChange is what Chmod changes; what is nil or empty stays.
type ModeChange struct {
	Mode         *uint32 // permission bits
	Owner, Group string  // by name or number
	Recursive    bool    // also all that is in a directory
}

// Chmod changes the permissions, the owner and the group of a file; links are followed.
// Errors: file_not_found, file_permission, invalid_argument.
func (f Files) Chmod(ctx context.Context, path string, m ModeChange) (FileInfo, error) {
	body := map[string]string{}
	putPath(body, "path", path)
	f.who(body, m.Owner)
	if m.Mode != nil {
		body["mode"] = formatMode(*m.Mode)
	}
	if m.Group != "" {
		body["group"] = m.Group
	}
	return f.post(ctx, "/files/mode", mixed(body, "recursive", m.Recursive), "change a file")
}

// SetMetadata sets and removes metadata of a file: text by keys, kept as extended
// attributes user.KEY. Errors: file_not_found, file_permission, invalid_argument.
func (f Files) SetMetadata(ctx context.Context, path string, set map[string]string, remove ...string) (FileInfo, error) {
	body := map[string]string{}
	putPath(body, "path", path)
	f.who(body, "")
	all := mixed(body, "set", set)
	all["remove"] = remove
	return f.post(ctx, "/files/metadata", all, "change the metadata of a file")
}

// Search is what is searched for: a name, a content, or both.
type Search struct {
	// Name is a pattern with *, ? and […] for the last element of a path; one with a slash
	// is for the path below the directory, and ** is any number of directories.
	Name string
	// Content is text in a line of a file, or with Regex a regular expression of RE2.
	Content    string
	Regex      bool
	IgnoreCase bool // of the content
	Depth      int  // how many levels deep; 0: any
	Limit      int  // 0: 1000; up to 10,000
}

// Match is a file that a search found, or with a Line a place in it.
type Match struct {
	Path   string `json:"path"`
	Type   string `json:"type"`             // one of the Type constants
	Line   int64  `json:"line,omitempty"`   // from 1
	Column int64  `json:"column,omitempty"` // in bytes, from 1
	Text   string `json:"text,omitempty"`   // of the line, or a part of it around the place
}

// Search searches a directory by name and by content. truncated: there is more than
// the limit. Errors: file_not_found, invalid_argument.
func (f Files) Search(ctx context.Context, path string, s Search) (matches []Match, truncated bool, err error) {
	query := f.query(path)
	for name, value := range map[string]string{"name": s.Name, "content": s.Content} {
		if value != "" {
			query.Set(name, value)
		}
	}
	for name, on := range map[string]bool{"regex": s.Regex, "ignore_case": s.IgnoreCase} {
		if on {
			query.Set(name, "true")
		}
	}
	for name, n := range map[string]int{"depth": s.Depth, "limit": s.Limit} {
		if n != 0 {
			query.Set(name, strconv.Itoa(n))
		}
	}
	var w struct {
		Matches []struct {
			Match
			PathBase64 string `json:"path_base64"`
		} `json:"matches"`
		Truncated bool `json:"truncated"`
	}
	if err := f.s.c.call(ctx, request{method: http.MethodGet, path: f.s.path("/files/search"), query: query, idempotent: true}, &w); err != nil {
		return nil, false, err
	}
	matches = make([]Match, len(w.Matches))
	for i, m := range w.Matches {
		matches[i] = m.Match
		if matches[i].Path, err = pathBytes(m.Path, m.PathBase64); err != nil {
			return nil, false, err
		}
	}
	return matches, w.Truncated, nil
}

func pathBytes(text, encoded string) (string, error) {
	if encoded == "" {
		return text, nil
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return "", &ringfence.Error{Code: ringfence.CodeInternal, Message: "the server's answer holds a path that is not base64", Err: err}
	}
	return string(raw), nil
}

// Checksum is a checksum of a file, as the sandbox says.
type Checksum struct {
	Algorithm string `json:"algorithm"`
	Checksum  string `json:"checksum"` // in hex
	Size      int64  `json:"size"`     // bytes
	ETag      string `json:"etag"`
}

// Checksum returns the checksum of a file without moving it: sha256 (also when
// algorithm is empty), sha512, sha1, md5 or crc32c. Errors: as Read.
func (f Files) Checksum(ctx context.Context, path, algorithm string) (Checksum, error) {
	query := f.query(path)
	if algorithm != "" {
		query.Set("algorithm", algorithm)
	}
	var sum Checksum
	err := f.s.c.call(ctx, request{method: http.MethodGet, path: f.s.path("/files/checksum"), query: query, idempotent: true}, &sum)
	return sum, err
}

// SignedURL opens one file without a key, for a while.
type SignedURL struct {
	URL       string
	ExpiresAt time.Time
}

// DownloadURL returns a URL from which anybody who has it can download the file, with a
// browser for one, for from 1 second to 7 days; 0 is an hour. It ends with the sandbox.
func (f Files) DownloadURL(ctx context.Context, path string, life time.Duration) (SignedURL, error) {
	return f.sign(ctx, path, "read", life)
}

// UploadURL is as DownloadURL, for writing the file: with PUT, or by a form of a web page.
func (f Files) UploadURL(ctx context.Context, path string, life time.Duration) (SignedURL, error) {
	return f.sign(ctx, path, "write", life)
}

func (f Files) sign(ctx context.Context, path, operation string, life time.Duration) (SignedURL, error) {
	if life%time.Second != 0 || life < 0 {
		return SignedURL{}, ringfence.Errorf(ringfence.CodeInvalidArgument, "%v is no number of whole seconds", life).WithField("expires_in_seconds")
	}
	body := map[string]string{"operation": operation}
	putPath(body, "path", path)
	f.who(body, "")
	all := any(body)
	if life > 0 {
		all = mixed(body, "expires_in_seconds", int64(life/time.Second))
	}
	var w struct {
		URL       string   `json:"url"`
		ExpiresAt wireTime `json:"expires_at"`
	}
	err := f.s.c.call(ctx, request{method: http.MethodPost, path: f.s.path("/files/sign"), body: all, what: fmt.Sprintf("sign a URL to %s a file", operation)}, &w)
	return SignedURL{w.URL, w.ExpiresAt.Time}, err
}
