package api

import (
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/engine"
)

// readFile sends a file, or the range of it that the request names.
func (c *call) readFile() error {
	f, err := c.fileRef()
	if err != nil {
		return err
	}
	wanted, ranged := parseRange(c.r.Header.Get("Range"))
	if ranged && (wanted.suffix || c.r.Header.Get("If-Range") != "") {
		// Where it begins, or whether it counts, depends on the file.
		var info ringfence.FileInfo
		err := c.Engine.ReadFile(c.r.Context(), f, 0, 1, func(i ringfence.FileInfo, _ io.Reader) error {
			info = i
			return nil
		})
		if err != nil {
			return err
		}
		if tag := c.r.Header.Get("If-Range"); tag != "" && tag != etag(info) && tag != info.ModifiedAt.UTC().Format(http.TimeFormat) {
			ranged = false
		} else if wanted.suffix {
			wanted = wanted.resolve(info.Size)
		}
	}
	if !ranged {
		wanted = byteRange{}
	} else if wanted.none {
		return notSatisfiable(c, -1)
	}
	return c.Engine.ReadFile(c.r.Context(), f, wanted.offset, wanted.length, func(info ringfence.FileInfo, body io.Reader) error {
		return c.sendFile(info, body, wanted, ranged)
	})
}

func (c *call) sendFile(info ringfence.FileInfo, body io.Reader, wanted byteRange, ranged bool) error {
	h := c.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", attachment(path.Base(info.Path)))
	h.Set("Accept-Ranges", "bytes")
	h.Set("ETag", etag(info))
	h.Set("Last-Modified", info.ModifiedAt.UTC().Format(http.TimeFormat))
	status, length := http.StatusOK, info.Size
	if match := c.r.Header.Get("If-Match"); match != "" && !matches(match, etag(info)) {
		return ringfence.Errorf(ringfence.CodePreconditionFailed, "the file has changed").WithField("path").WithHint("read it without If-Match")
	}
	switch {
	case !ranged && matches(c.r.Header.Get("If-None-Match"), etag(info)):
		h.Del("Content-Type")
		c.w.WriteHeader(http.StatusNotModified)
		return nil
	case ranged && wanted.offset >= info.Size:
		return notSatisfiable(c, info.Size)
	case ranged:
		length = info.Size - wanted.offset
		if wanted.length > 0 {
			length = min(length, wanted.length)
		}
		status = http.StatusPartialContent
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", wanted.offset, wanted.offset+length-1, info.Size))
	}
	if info.Size == 0 {
		var err error
		if length, body, err = engine.ContentLength(info.Size, body); err != nil {
			return err
		}
	}
	if length >= 0 {
		h.Set("Content-Length", strconv.FormatInt(length, 10))
	}
	c.w.WriteHeader(status)
	if c.r.Method == http.MethodHead || length == 0 {
		return nil
	}
	n, err := io.Copy(c.w, body)
	if err == nil && length >= 0 && n != length {
		err = ringfence.Errorf(ringfence.CodeUnavailable, "the file changed while it was read")
	}
	return err
}

func notSatisfiable(c *call, size int64) error {
	e := ringfence.Errorf(ringfence.CodeRangeInvalid, "the range does not fit the file")
	if size >= 0 {
		c.w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", size))
		e = e.WithHint("the file has %d bytes", size)
	}
	return e
}

// etag is a file's etag as headers have it.
func etag(i ringfence.FileInfo) string { return `"` + i.ETag + `"` }

// attachment says that a file is to be kept, under its own name, and not to be shown.
func attachment(name string) string {
	name = strings.ToValidUTF8(name, "\uFFFD")
	if value := mime.FormatMediaType("attachment", map[string]string{"filename": name}); value != "" && name != "/" {
		return value
	}
	return "attachment"
}

func matches(header, tag string) bool {
	for item := range strings.SplitSeq(header, ",") {
		if item = strings.TrimPrefix(strings.TrimSpace(item), "W/"); item == tag || item == "*" {
			return true
		}
	}
	return false
}

// byteRange is a range of a file. length 0: to the end.
type byteRange struct {
	offset, length int64
	suffix         bool // length bytes from the end, wherever that is
	none           bool // no byte at all
}

// parseRange reads a Range header. One that it does not understand, or that asks for
// several ranges, counts as none, as the RFC says.
func parseRange(header string) (byteRange, bool) {
	spec, ok := strings.CutPrefix(header, "bytes=")
	from, to, dash := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok || !dash || strings.Contains(spec, ",") {
		return byteRange{}, false
	}
	if from == "" {
		n, err := strconv.ParseUint(to, 10, 63)
		return byteRange{length: int64(n), suffix: true, none: n == 0}, err == nil
	}
	first, err := strconv.ParseUint(from, 10, 63)
	if err != nil {
		return byteRange{}, false
	}
	r := byteRange{offset: int64(first)}
	if to == "" {
		return r, true
	}
	last, err := strconv.ParseUint(to, 10, 63)
	if err != nil || last < first {
		return byteRange{}, false
	}
	r.length = int64(min(last-first, 1<<62)) + 1
	return r, true
}

func (r byteRange) resolve(size int64) byteRange {
	n := min(r.length, size)
	return byteRange{offset: size - n, length: n, none: n == 0}
}
