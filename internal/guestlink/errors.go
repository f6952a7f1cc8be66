package guestlink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

// maxMessage bounds the text of an error that comes from a guest, in bytes.
const maxMessage = 1 << 10

// guestCodes are the codes that a guest may use. It may not claim, say, that a
// caller is not authenticated.
var guestCodes = map[ringfence.Code]bool{
	ringfence.CodeInvalidArgument:    true,
	ringfence.CodeNotFound:           true,
	ringfence.CodeFileNotFound:       true,
	ringfence.CodeFileExists:         true,
	ringfence.CodeIsDirectory:        true,
	ringfence.CodeNotDirectory:       true,
	ringfence.CodeDirectoryNotEmpty:  true,
	ringfence.CodeFilePermission:     true,
	ringfence.CodeDiskFull:           true,
	ringfence.CodeAlreadyExists:      true,
	ringfence.CodeFailedPrecondition: true,
	ringfence.CodeNotYetSupported:    true,
	ringfence.CodePreconditionFailed: true,
	ringfence.CodeArchiveRefused:     true,
	ringfence.CodeTooLarge:           true,
	ringfence.CodeRangeInvalid:       true,
	ringfence.CodeResourceExhausted:  true,
	ringfence.CodeUnavailable:        true,
	ringfence.CodePortNotListening:   true,
	ringfence.CodeProcessNotFound:    true,
	ringfence.CodeProcessEnded:       true,
	ringfence.CodeStdinClosed:        true,
}

// guestError turns an error of the guest into ours.
func guestError(e *guestproto.Error) error {
	message := cleanText(e.Message)
	code := ringfence.Code(e.Code)
	if !guestCodes[code] {
		return &ringfence.Error{Code: ringfence.CodeInternal, Message: "the guest agent failed",
			Err: fmt.Errorf("guest error %q: %s", cleanText(e.Code), message)}
	}
	out := &ringfence.Error{Code: code, Message: message}
	switch e.Field {
	case "user", "cwd", "path", "to", "owner", "command", "args", "env", "id", "mode", "signal", "depth", "port", "pty", "cols", "process",
		"group", "name", "content", "limit", "algorithm", "format", "set", "remove":
		out.Field = e.Field
	}
	return out
}

// cleanText bounds a guest's text and takes out what could fool a terminal or a log.
func cleanText(s string) string {
	if len(s) > maxMessage {
		s = s[:maxMessage] + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// linkError is the end of a session by a fault.
func linkError(what string, err error) error {
	var e *ringfence.Error
	if errors.As(err, &e) {
		return err
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // nobody may take the end of the link for the end of a file
	}
	return &ringfence.Error{Code: ringfence.CodeUnavailable, Message: what, Err: err}
}

func errFrozen() error {
	return ringfence.Errorf(ringfence.CodeUnavailable, "the sandbox is being saved").WithHint("try again in a moment")
}

// contextError is a call that its caller gave up. A cause that is an *Error of ours
// is returned as it is.
func contextError(ctx context.Context, what string) error {
	cause := context.Cause(ctx)
	var e *ringfence.Error
	if errors.As(cause, &e) {
		return e
	}
	code := ringfence.CodeCanceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		code = ringfence.CodeDeadlineExceeded
	}
	return &ringfence.Error{Code: code, Message: what + ": the call was given up, and its outcome is not known", Err: cause}
}
