package egress

import (
	"bytes"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

const maxHead = 64 << 10

// request is the head of an HTTP/1 request, as far as it says whom it is for and
// where it ends (RFC 9112). What two parsers could read differently is malformed.
type request struct {
	size    int // of the head, blank lines before it included
	hosts   []string
	length  int64 // of the body; -1: chunked
	upgrade string
}

var (
	requestLine = regexp.MustCompile(`^([!#$%&'*+.^_` + "`" + `|~0-9A-Za-z-]{1,32}) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])$`)
	fieldName   = regexp.MustCompile(`^[!#$%&'*+.^_` + "`" + `|~0-9A-Za-z-]+$`)
	schemeForm  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)`)
)

// looksHTTP reports whether b begins like an HTTP/1 request: a token, a space, and a
// line that ends in a version. The first seen bytes were not enough to tell.
func looksHTTP(b []byte, seen int) progress {
	if 0 < seen && seen <= len(b) && len(b) <= maxHead && bytes.IndexFunc(b[seen:], notInLine) < 0 && bytes.IndexByte(b[:min(len(b), 80)], ' ') >= 0 {
		return needMore
	}
	b = bytes.TrimLeft(b, "\r\n")
	token := bytes.IndexByte(b, ' ')
	head := b
	if token >= 0 {
		head = b[:token]
	}
	if len(head) > 32 || len(head) > 0 && !fieldName.Match(head) {
		return malformed
	}
	if token < 0 {
		return needMore
	}
	line := b[token+1:]
	end := bytes.IndexByte(line, '\n')
	if end < 0 {
		if len(line) > maxHead || bytes.IndexFunc(bytes.TrimRight(line, "\r"), notInLine) >= 0 {
			return malformed
		}
		return needMore
	}
	line = bytes.TrimRight(line[:end], "\r")
	i := bytes.LastIndexByte(line, ' ')
	if bytes.HasPrefix(line[i+1:], []byte("HTTP/")) {
		return complete
	}
	switch string(head) {
	case "GET", "POST", "HEAD": // HTTP/0.9 has no version, and names no host
		return complete
	}
	return malformed
}

func notInLine(r rune) bool { return r < 0x20 && r != '\t' || r == 0x7f }

// moreOfHead reports whether b, of which the first seen bytes hold no whole head and
// nothing that is wrong, still does.
func moreOfHead(b []byte, seen int) bool {
	if seen == 0 || seen > len(b) || len(b) > maxHead || bytes.Contains(b[max(0, seen-3):], []byte("\r\n\r\n")) {
		return false
	}
	return !bareLineEnd(b[max(0, seen-1):])
}

// parseRequest reads the head at the beginning of b.
func parseRequest(b []byte) (*request, progress) {
	skipped := 0
	for bytes.HasPrefix(b[skipped:], []byte("\r\n")) {
		skipped += 2
	}
	end := bytes.Index(b[skipped:], []byte("\r\n\r\n"))
	if end < 0 {
		if len(b) > maxHead || bareLineEnd(b[skipped:]) {
			return nil, malformed
		}
		return nil, needMore
	}
	head := b[skipped : skipped+end]
	if len(head) > maxHead || bareLineEnd(b[skipped:skipped+end+4]) || bytes.IndexByte(head, 0) >= 0 {
		return nil, malformed
	}
	lines := strings.Split(string(head), "\r\n")
	m := requestLine.FindStringSubmatch(lines[0])
	if m == nil || m[3] != "1" || m[1] == "CONNECT" {
		return nil, malformed
	}
	r := &request{size: skipped + end + 4}
	if abs := schemeForm.FindStringSubmatch(m[2]); abs != nil {
		r.hosts = append(r.hosts, abs[1])
	} else if m[2][0] != '/' && m[2] != "*" {
		return nil, malformed
	}
	hosts, lengths, encodings := 0, 0, 0
	for _, line := range lines[1:] {
		name, value, ok := strings.Cut(line, ":")
		if !ok || !fieldName.MatchString(name) { // a folded line, or space before the colon
			return nil, malformed
		}
		value = strings.Trim(value, " \t")
		switch strings.ToLower(name) {
		case "host":
			hosts++
			r.hosts = append(r.hosts, value)
		case "content-length":
			lengths++
			n, err := strconv.ParseUint(value, 10, 62)
			if err != nil || value[0] == '+' {
				return nil, malformed
			}
			r.length = int64(n)
		case "transfer-encoding":
			encodings++
			if !strings.EqualFold(value, "chunked") || m[4] == "0" {
				return nil, malformed
			}
		case "upgrade":
			if r.upgrade != "" {
				return nil, malformed
			}
			r.upgrade = strings.ToLower(value)
		}
	}
	if hosts > 1 || lengths > 1 || encodings > 1 || lengths+encodings > 1 {
		return nil, malformed
	}
	if encodings == 1 {
		r.length = -1
	}
	return r, complete
}

// bareLineEnd reports whether b has a CR without its LF or an LF without its CR.
func bareLineEnd(b []byte) bool {
	for i, c := range b {
		if c == '\n' && (i == 0 || b[i-1] != '\r') || c == '\r' && i+1 < len(b) && b[i+1] != '\n' {
			return true
		}
	}
	return false
}

// hostName takes the port off a Host field or an authority. ok is false when it
// cannot be read in one way only.
func hostName(s string) (name string, ok bool) {
	if strings.HasPrefix(s, "[") {
		inner, rest, closed := strings.Cut(s[1:], "]")
		a, err := netip.ParseAddr(inner)
		return inner, closed && err == nil && a.Is6() && (rest == "" || validPort(rest))
	}
	name, _, _ = strings.Cut(s, ":")
	return name, name != "" && (len(name) == len(s) || validPort(s[len(name):])) && !strings.ContainsAny(name, "@/\\ \t,")
}

// validPort: ":" may stand alone (RFC 9110 §4.2.3).
func validPort(s string) bool {
	return s[0] == ':' && len(s) <= 6 && strings.Trim(s[1:], "0123456789") == ""
}
