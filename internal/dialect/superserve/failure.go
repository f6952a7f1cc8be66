package superserve

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/dialect"
)

// failure is what an error becomes on the wire. The SDKs choose their class by the status.
type failure struct {
	status int
	code   string
}

// failures says what each code becomes. A call on the data plane that gets 401, 403 or 503
// is repeated by the SDKs after an activate, so that nothing that may have been carried out
// becomes one of these: see outcome.
var failures = map[ringfence.Code]failure{
	ringfence.CodeInvalidArgument:    {http.StatusBadRequest, "bad_request"},
	ringfence.CodeUnauthenticated:    {http.StatusUnauthorized, "unauthorized"},
	ringfence.CodePermissionDenied:   {http.StatusForbidden, "forbidden"},
	ringfence.CodeNotFound:           {http.StatusNotFound, "not_found"},
	ringfence.CodeTemplateNotFound:   {http.StatusNotFound, "not_found"},
	ringfence.CodeFileNotFound:       {http.StatusNotFound, "not_found"},
	ringfence.CodeProcessNotFound:    {http.StatusNotFound, "not_found"},
	ringfence.CodeRouteNotFound:      {http.StatusNotFound, "not_found"},
	ringfence.CodeSandboxEnded:       {http.StatusNotFound, "not_found"},
	ringfence.CodeIsDirectory:        {http.StatusBadRequest, "bad_request"},
	ringfence.CodeNotDirectory:       {http.StatusBadRequest, "bad_request"},
	ringfence.CodeFilePermission:     {http.StatusBadRequest, "sandbox_filesystem_error"},
	ringfence.CodeNotYetSupported:    {http.StatusBadRequest, "not_supported"},
	ringfence.CodeArchiveRefused:     {http.StatusBadRequest, "bad_request"},
	ringfence.CodeTooLarge:           {http.StatusBadRequest, "bad_request"},
	ringfence.CodeRangeInvalid:       {http.StatusBadRequest, "bad_request"},
	ringfence.CodeDiskFull:           {http.StatusInsufficientStorage, "sandbox_storage_full"},
	ringfence.CodeFileExists:         {http.StatusConflict, "conflict"},
	ringfence.CodeDirectoryNotEmpty:  {http.StatusConflict, "conflict"},
	ringfence.CodeAlreadyExists:      {http.StatusConflict, "conflict"},
	ringfence.CodeFailedPrecondition: {http.StatusConflict, "conflict"},
	ringfence.CodePreconditionFailed: {http.StatusConflict, "conflict"},
	ringfence.CodeSandboxPaused:      {http.StatusConflict, "conflict"},
	ringfence.CodeProcessEnded:       {http.StatusConflict, "conflict"},
	ringfence.CodeStdinClosed:        {http.StatusConflict, "conflict"},
	ringfence.CodeResourceExhausted:  {http.StatusTooManyRequests, "rate_limited"},
	ringfence.CodeUnavailable:        {http.StatusServiceUnavailable, "service_unavailable"},
	ringfence.CodeDeadlineExceeded:   {http.StatusRequestTimeout, "timeout"},
	ringfence.CodeCanceled:           {499, "canceled"},
	ringfence.CodeMethodNotAllowed:   {http.StatusMethodNotAllowed, "bad_request"},
}

func failureOf(err error) failure {
	if f, ok := failures[ringfence.CodeOf(err)]; ok {
		return f
	}
	return failure{http.StatusInternalServerError, "internal_error"}
}

// unknown is a fault in the middle of a command. Its status makes no SDK repeat the call,
// and none takes it for anything but an error.
var unknown = failure{http.StatusFailedDependency, "exec_failed"}

// outcome is an error of a command that may have been started.
type outcome struct{ error }

func (o outcome) Unwrap() error { return o.error }

type errorBody struct {
	Error errorText `json:"error"`
}

type errorText struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// message is what of an error its caller may see: what was refused, and what to do.
func message(err error) string {
	var e *ringfence.Error
	text := "the server could not do this; its log says more"
	if errors.As(err, &e) {
		if text = e.Message; e.Hint != "" {
			text += "; " + e.Hint
		}
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// refuse answers with an error.
func (c *call) refuse(err error) {
	c.Fault(c.w, err)
	f := failureOf(err)
	var started outcome
	if errors.As(err, &started) && f.status >= http.StatusInternalServerError {
		f = unknown
	}
	var e *ringfence.Error
	if f.status == http.StatusTooManyRequests {
		seconds := 1
		if errors.As(err, &e) {
			seconds = max(e.RetryAfterSeconds, 1)
		}
		c.w.Header().Set("Retry-After", strconv.Itoa(seconds))
		if c.name == "superserve/sandboxes" {
			f.code = "too_many_sandboxes"
		}
	}
	for _, name := range []string{"Content-Disposition", "Content-Length", "Content-Type"} {
		c.w.Header().Del(name)
	}
	if err := dialect.Reply(c.w, f.status, errorBody{errorText{f.code, message(err)}}); err != nil {
		c.Log.Debug("cannot send an error", "route", c.name, "error", err)
	}
}

func invalid(field, format string, args ...any) *ringfence.Error {
	return ringfence.Errorf(ringfence.CodeInvalidArgument, format, args...).WithField(field)
}

func notSupported(field, format string, args ...any) *ringfence.Error {
	return ringfence.Errorf(ringfence.CodeNotYetSupported, format, args...).WithField(field)
}
