package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"ringfence.dev/ringfence"
)

// JSON reports whether the caller asked for JSON.
func (a *App) JSON() bool { return a.json }

// PrintJSON prints v, indented, in a form that no terminal takes for a command.
func (a *App) PrintJSON(v any) error { return writeJSON(a.out, v) }

// writeJSON escapes what JSON leaves alone and a terminal does not: DEL, C1 controls
// and the characters that turn the direction of text. They are valid only inside of
// strings, where \u spells them.
func writeJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	var out bytes.Buffer
	for _, r := range b.String() {
		switch {
		case r < utf8.RuneSelf && r != 0x7f, unicode.IsPrint(r):
			out.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&out, `\u%04x\u%04x`, 0xd800+(r>>10), 0xdc00+(r&0x3ff))
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	_, err := w.Write(out.Bytes())
	return err
}

// Escape makes text of a sandbox safe for a terminal: control characters (C0, DEL and
// C1), line ends, bytes that are not UTF-8 and the invisible characters that change the
// direction of text are spelled out.
func Escape(s string) string {
	clean := true
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
		i += n
	}
	return b.String()
}

// table prints rows of cells, each escaped, under a heading.
func (a *App) table(heading []string, rows [][]string) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(heading, "\t"))
	for _, row := range rows {
		safe := make([]string, len(row))
		for i, cell := range row {
			safe[i] = Escape(cell)
			if safe[i] == "" {
				safe[i] = "-"
			}
		}
		fmt.Fprintln(w, strings.Join(safe, "\t"))
	}
	return w.Flush()
}

// note tells the person at the terminal something that is no result.
func (a *App) note(format string, args ...any) {
	if !a.json {
		fmt.Fprintf(a.err, format+"\n", args...)
	}
}

// printError prints an error; full is the whole chain that e was found in.
func (a *App) printError(e *ringfence.Error, full error) {
	message := e.Message
	if cause := e.Err; cause != nil && !strings.Contains(message, cause.Error()) {
		message += ": " + cause.Error()
	}
	if prefix, ok := strings.CutSuffix(full.Error(), e.Error()); ok {
		message = prefix + message // what the command was doing
	}
	if a.json {
		_ = writeJSON(a.err, map[string]any{"error": errorJSON{
			Code: e.Code, Message: message, Hint: e.Hint, Field: e.Field, RequestID: e.RequestID, ExitCode: ringfence.RowOf(e.Code).Exit,
		}})
		return
	}
	fmt.Fprintf(a.err, "ringfence: %s\n", Escape(message))
	if e.Hint != "" {
		fmt.Fprintf(a.err, "hint: %s\n", Escape(e.Hint))
	}
	if e.RequestID != "" {
		fmt.Fprintf(a.err, "request: %s\n", Escape(e.RequestID))
	}
}

type errorJSON struct {
	Code      ringfence.Code `json:"code"`
	Message   string         `json:"message"`
	Hint      string         `json:"hint"`
	Field     string         `json:"field,omitempty"`
	RequestID string         `json:"request_id,omitempty"`
	ExitCode  int            `json:"exit_code"`
}

// timeJSON is a time as the API spells it; null for the zero time.
func timeJSON(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	s := ringfence.FormatTime(t)
	return &s
}

// age says how long ago t was, for people.
func age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return span(time.Since(t))
}

func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
