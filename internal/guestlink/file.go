package guestlink

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"unicode/utf8"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

// In all calls a path is bytes in a Go string: the caller sets Path and leaves
// PathBytes alone. In every FileInfo that comes back, Path and Target are the bytes
// too, valid UTF-8 or not.

// maxLine bounds one line of a listing, in bytes.
const maxLine = 64 << 10

// ReadFile opens a regular file for reading. The reader fails when the link breaks
// or the file shrinks while it is read; io.EOF is only ever the whole of what was
// asked for. Close gives the rest up. ctx covers the reading too.
func (c *Conn) ReadFile(ctx context.Context, f guestproto.FileRead) (guestproto.FileInfo, io.ReadCloser, error) {
	encodePath(&f.FilePath)
	ch, err := c.open(ctx, guestproto.MethodFileRead, f)
	if err != nil {
		return guestproto.FileInfo{}, nil, err
	}
	var info guestproto.FileInfo
	it, err := ch.recv(ctx)
	if err == nil {
		switch it.typ {
		case guestproto.TypeEvent:
			err = it.event(&info)
		case guestproto.TypeResult:
			if err = it.result(nil); err == nil {
				err = badAnswer(errors.New("a result before the file's description"))
			}
		default:
			it.buf.release()
			err = badAnswer(errors.New("data before the file's description"))
		}
	}
	if err == nil {
		err = checkInfo(&info)
	}
	if err != nil {
		ch.cancel(err)
		return guestproto.FileInfo{}, nil, err
	}
	return info, &fileReader{ctx: ctx, ch: ch}, nil
}

// fileReader is the content of a file. It is for one goroutine.
type fileReader struct {
	ctx  context.Context
	ch   *channel
	cur  item
	rest []byte // of cur
	err  error
}

// next waits for data.
func (r *fileReader) next() error {
	if r.err != nil {
		return r.err
	}
	if r.cur.data != nil {
		r.err = r.ch.release(r.ctx, r.cur)
		r.cur = item{}
		if r.err != nil {
			return r.err
		}
	}
	it, err := r.ch.recv(r.ctx)
	switch {
	case err != nil:
		r.err = err
		r.ch.cancel(err)
	case it.typ == guestproto.TypeData:
		r.cur, r.rest = it, it.data
	case it.typ == guestproto.TypeResult:
		if r.err = it.result(nil); r.err == nil {
			r.err = io.EOF
		}
	default:
		it.buf.release()
		r.err = badAnswer(errors.New("an event within a file"))
		r.ch.cancel(r.err)
	}
	return r.err
}

func (r *fileReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if err := r.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// WriteTo saves io.Copy a buffer and a copy of every byte.
func (r *fileReader) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for {
		if len(r.rest) == 0 {
			if err := r.next(); err == io.EOF { //nolint:errorlint // an error that wraps it is not the end of the file
				return total, nil
			} else if err != nil {
				return total, err
			}
		}
		n, err := w.Write(r.rest)
		total += int64(n)
		r.rest = r.rest[n:]
		if err != nil {
			return total, err
		}
	}
}

func (r *fileReader) Close() error {
	if r.err == nil {
		r.err = ringfence.Errorf(ringfence.CodeCanceled, "the file was closed")
		r.cur.buf.release()
		r.cur, r.rest = item{}, nil
		r.ch.cancel(r.err)
	}
	return nil
}

// callFrom makes a call that is given what r gives.
func (c *Conn) callFrom(ctx context.Context, method string, params any, r io.Reader) (*channel, error) {
	ch, err := c.open(ctx, method, params)
	if err != nil {
		return nil, err
	}
	for err == nil {
		err = ch.sendFrom(ctx, r)
	}
	switch {
	case err == io.EOF: //nolint:errorlint // an error that wraps it is no end of the caller's data
		// A caller that has given up must not have what it got by then made the file.
		if err = ctx.Err(); err == nil {
			err = ch.sendEnd(ctx)
		} else {
			err = contextError(ctx, "cannot write the file")
		}
	case errors.Is(err, errCallOver): // the guest has its reason, which is the result
		err = nil
	}
	if err != nil {
		ch.cancel(err)
		var re readError
		if errors.As(err, &re) {
			err = re.error
		}
		return nil, err
	}
	return ch, nil
}

// WriteFile replaces a file with what r gives. When r fails, the file stays as it
// was and r's error is returned.
func (c *Conn) WriteFile(ctx context.Context, f guestproto.FileWrite, r io.Reader) (guestproto.FileInfo, error) {
	encodePath(&f.FilePath)
	ch, err := c.callFrom(ctx, guestproto.MethodFileWrite, f, r)
	if err != nil {
		return guestproto.FileInfo{}, err
	}
	return ch.infoResult(ctx)
}

// StatFile describes a file; a symbolic link is described, not followed.
func (c *Conn) StatFile(ctx context.Context, f guestproto.FilePath) (guestproto.FileInfo, error) {
	encodePath(&f)
	return c.infoCall(ctx, guestproto.MethodFileStat, f)
}

// Mkdir makes a directory and its parents.
func (c *Conn) Mkdir(ctx context.Context, f guestproto.FileMkdir) (guestproto.FileInfo, error) {
	encodePath(&f.FilePath)
	return c.infoCall(ctx, guestproto.MethodFileMkdir, f)
}

// Rename moves a file or a directory.
func (c *Conn) Rename(ctx context.Context, f guestproto.FileRename) (guestproto.FileInfo, error) {
	encodePath(&f.FilePath)
	if f.ToBytes = nil; !utf8.ValidString(f.To) {
		f.ToBytes = []byte(f.To)
	}
	return c.infoCall(ctx, guestproto.MethodFileRename, f)
}

// Remove removes a file or a directory.
func (c *Conn) Remove(ctx context.Context, f guestproto.FileRemove) error {
	encodePath(&f.FilePath)
	return c.call(ctx, guestproto.MethodFileRemove, f, nil)
}

// ListFiles calls each for the entries of a directory, in the order of their names; a
// directory comes before what is in it. An error of each ends the listing and is
// returned. The number of entries has no bound here, nor is their order believed.
func (c *Conn) ListFiles(ctx context.Context, f guestproto.FileList, each func(guestproto.FileInfo) error) error {
	encodePath(&f.FilePath)
	return c.lines(ctx, guestproto.MethodFileList, f, func(line []byte) error {
		var info guestproto.FileInfo
		if err := json.Unmarshal(line, &info); err != nil {
			return badAnswer(err)
		}
		if err := checkInfo(&info); err != nil {
			return err
		}
		return each(info)
	})
}

// linesAnd makes a call whose data are lines. ready is called at its event, and may be
// nil; so may result.
func (c *Conn) linesAnd(ctx context.Context, method string, params, result any, ready func() error, each func(line []byte) error) error {
	ch, err := c.open(ctx, method, params)
	if err != nil {
		return err
	}
	var partial []byte
	for {
		it, err := ch.recv(ctx)
		if err == nil && it.typ == guestproto.TypeResult {
			if err := it.result(result); err != nil {
				return err
			}
			if len(partial) > 0 {
				return badAnswer(errors.New("an answer that ends within a line"))
			}
			return nil
		}
		switch {
		case err != nil:
		case it.typ == guestproto.TypeEvent:
			if it.buf.release(); ready != nil {
				err = ready()
				ready = nil
			}
		default:
			partial, err = cutLines(partial, it.data, each)
			if rerr := ch.release(ctx, it); err == nil {
				err = rerr
			}
		}
		if err != nil {
			ch.cancel(err)
			return err
		}
	}
}

func (c *Conn) infoCall(ctx context.Context, method string, params any) (guestproto.FileInfo, error) {
	ch, err := c.open(ctx, method, params)
	if err != nil {
		return guestproto.FileInfo{}, err
	}
	return ch.infoResult(ctx)
}

func (ch *channel) infoResult(ctx context.Context) (guestproto.FileInfo, error) {
	var info guestproto.FileInfo
	if err := ch.await(ctx, &info); err != nil {
		return guestproto.FileInfo{}, err
	}
	return info, checkInfo(&info)
}

// await waits for the result of a call that has nothing else for its caller.
func (ch *channel) await(ctx context.Context, value any) error {
	for {
		it, err := ch.recv(ctx)
		if err != nil {
			ch.cancel(err)
			return err
		}
		if it.typ == guestproto.TypeResult {
			return it.result(value)
		}
		it.buf.release()
	}
}

// encodePath lets a path that is not UTF-8 survive JSON.
func encodePath(f *guestproto.FilePath) {
	if f.PathBytes = nil; !utf8.ValidString(f.Path) {
		f.PathBytes = []byte(f.Path)
	}
}

// checkInfo checks what a guest says about a file, and puts the bytes of its names
// in Path and Target.
func checkInfo(i *guestproto.FileInfo) error {
	if len(i.PathBytes) > 0 {
		i.Path, i.PathBytes = string(i.PathBytes), nil
	}
	if len(i.TargetBytes) > 0 {
		i.Target, i.TargetBytes = string(i.TargetBytes), nil
	}
	ok := len(i.Path) <= 2*ringfence.MaxPathBytes && len(i.Target) <= ringfence.MaxPathBytes &&
		len(i.Owner) <= 256 && len(i.Group) <= 256 &&
		validETag(i.ETag) && validMetadata(i.Metadata) &&
		i.Size >= 0 && i.Mode <= 0o7777 && i.ModTime > math.MinInt64/2 && i.ModTime < math.MaxInt64/2
	switch i.Type {
	case "file", "directory", "symlink", "other":
	default:
		ok = false
	}
	if !ok {
		return badAnswer(errors.New("a description of a file that is out of bounds"))
	}
	i.Owner, i.Group = cleanText(i.Owner), cleanText(i.Group)
	return nil
}
