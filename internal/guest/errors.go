package guest

import (
	"errors"
	"fmt"
	"syscall"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

// Shorter names for the codes that an agent may use.
const (
	codeInvalid            = ringfence.CodeInvalidArgument
	codeNotFound           = ringfence.CodeNotFound
	codeFileNotFound       = ringfence.CodeFileNotFound
	codeFileExists         = ringfence.CodeFileExists
	codeIsDirectory        = ringfence.CodeIsDirectory
	codeNotDirectory       = ringfence.CodeNotDirectory
	codeNotEmpty           = ringfence.CodeDirectoryNotEmpty
	codeFilePermission     = ringfence.CodeFilePermission
	codeDiskFull           = ringfence.CodeDiskFull
	codeExists             = ringfence.CodeAlreadyExists
	codePrecondition       = ringfence.CodeFailedPrecondition
	codeNotYetSupported    = ringfence.CodeNotYetSupported
	codeRange              = ringfence.CodeRangeInvalid
	codeExhausted          = ringfence.CodeResourceExhausted
	codeInternal           = ringfence.CodeInternal
	codeProcessNotFound    = ringfence.CodeProcessNotFound
	codeProcessEnded       = ringfence.CodeProcessEnded
	codeStdinClosed        = ringfence.CodeStdinClosed
	codeUnavailable        = ringfence.CodeUnavailable
	codePreconditionFailed = ringfence.CodePreconditionFailed

	codePortNotListening = ringfence.CodePortNotListening
)

// errGone is the end of a call that nobody waits for any more.
var errGone = errors.New("the host gave the call up")

func fail(code ringfence.Code, field, format string, args ...any) error {
	return &ringfence.Error{Code: code, Field: field, Message: fmt.Sprintf(format, args...)}
}

// wireError spells err for the host.
func wireError(err error) *guestproto.Error {
	var e *ringfence.Error
	if errors.As(err, &e) {
		return &guestproto.Error{Code: string(e.Code), Message: e.Message, Field: e.Field}
	}
	return &guestproto.Error{Code: string(codeInternal), Message: err.Error()}
}

// fileError says what went wrong with a path. what is "read", "write", ….
func fileError(what, path string, err error) error {
	var e *ringfence.Error
	if errors.As(err, &e) || errors.Is(err, errGone) {
		return err
	}
	code, text := codeInternal, err.Error()
	var errno syscall.Errno
	if errors.As(err, &errno) {
		text = errno.Error()
		switch errno {
		case syscall.ENOENT:
			code = codeFileNotFound
		case syscall.EEXIST:
			code = codeFileExists
		case syscall.EISDIR:
			code = codeIsDirectory
		case syscall.ENOTDIR:
			code = codeNotDirectory
		case syscall.ENOTEMPTY:
			code = codeNotEmpty
		case syscall.EACCES, syscall.EPERM, syscall.EROFS, syscall.ETXTBSY:
			code = codeFilePermission
		case syscall.ENOSPC, syscall.EDQUOT:
			code = codeDiskFull
		case syscall.ENAMETOOLONG, syscall.ELOOP, syscall.EINVAL, syscall.EXDEV, syscall.EBUSY, syscall.EFBIG, syscall.ENXIO:
			code = codeInvalid
		case syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN:
			code = codeExhausted
		}
	}
	return fail(code, "path", "cannot %s %q: %s", what, path, text)
}
