package engine

import (
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"ringfence.dev/ringfence"
)

var userRule = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_.-]{0,31}|[0-9]{1,10})$`)

func invalid(field, format string, args ...any) *ringfence.Error {
	return ringfence.Errorf(ringfence.CodeInvalidArgument, format, args...).WithField(field)
}

func (r *CreateRequest) validate() error {
	if len(r.Name) > ringfence.MaxNameLength || !printable(r.Name) {
		return invalid("name", "name has to be text of at most %d bytes without control characters", ringfence.MaxNameLength)
	}
	if len(r.Template) > maxTemplateName || !printable(r.Template) {
		return invalid("template", "template is no template's name")
	}
	if r.User != "" && !userRule.MatchString(r.User) {
		return invalid("user", "user is neither a user's name nor a number")
	}
	if err := validEnv("env", r.Env); err != nil {
		return err
	}
	return ValidMetadata(r.Metadata)
}

// ValidMetadata checks the metadata of a sandbox.
func ValidMetadata(metadata map[string]string) error {
	if len(metadata) > ringfence.MaxMetadataItems {
		return invalid("metadata", "metadata has %d entries, at most %d are kept", len(metadata), ringfence.MaxMetadataItems)
	}
	total := 0
	for k, v := range metadata {
		if total += len(k) + len(v); k == "" || !utf8.ValidString(k) || !utf8.ValidString(v) {
			return invalid("metadata", "metadata has an empty key, or one that is no text")
		}
	}
	if total > ringfence.MaxMetadataBytes {
		return invalid("metadata", "metadata has %d bytes, at most %d are kept", total, ringfence.MaxMetadataBytes)
	}
	return nil
}

func validDeadlines(d ringfence.Deadlines) error {
	const most = ringfence.MaxTimeoutSeconds * time.Second
	switch {
	case d.Timeout < 0 || d.Timeout > most:
		return invalid("timeout_seconds", "timeout_seconds has to be above 0 and at most %d", ringfence.MaxTimeoutSeconds)
	case d.IdleTimeout < 0 || d.IdleTimeout > most:
		return invalid("idle_timeout_seconds", "idle_timeout_seconds has to be above 0 and at most %d", ringfence.MaxTimeoutSeconds)
	case d.AutoDelete != nil && (*d.AutoDelete < 0 || *d.AutoDelete > most):
		return invalid("auto_delete_seconds", "auto_delete_seconds has to be from 0 to %d", ringfence.MaxTimeoutSeconds)
	case d.OnTimeout != "" && d.OnTimeout != ringfence.OnTimeoutKill && d.OnTimeout != ringfence.OnTimeoutPause:
		return invalid("on_timeout", "on_timeout is neither kill nor pause")
	}
	return nil
}

func validEnv(field string, env map[string]string) error {
	if len(env) > ringfence.MaxEnvEntries {
		return invalid(field, "%s has %d entries, at most %d fit", field, len(env), ringfence.MaxEnvEntries)
	}
	total := 0
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return invalid(field, "%s has the name %s; a name is not empty and holds neither = nor a zero byte", field, quoteShort(k))
		}
		if strings.ContainsRune(v, 0) {
			return invalid(field, "%s has a value with a zero byte, under %s", field, quoteShort(k))
		}
		total += len(k) + len(v)
	}
	if total > ringfence.MaxEnvBytes {
		return invalid(field, "%s has %d bytes, at most %d fit", field, total, ringfence.MaxEnvBytes)
	}
	return nil
}

func printable(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, unicode.IsControl) < 0
}
