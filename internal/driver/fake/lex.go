package fake

import "strings"

// token is an operator, or a word of several parts.
type token struct {
	op     string
	parts  []part
	quoted bool
}

type part struct {
	text     string
	variable bool // text is the name of a variable
}

// separates reports whether the token ends a pipeline.
func (t token) separates() bool {
	switch t.op {
	case ";", "&&", "||", "&":
		return true
	}
	return false
}

// operators, longest first.
var operators = []string{"2>&1", ">&2", "2>>", "&&", "||", ">>", "2>", ";", "&", "|", ">", "<", "\n"}

// lex cuts a script into tokens.
func lex(s string) ([]token, error) {
	var tokens []token
	var word *token
	add := func(text string, variable, quoted bool) {
		if word == nil {
			word = &token{}
		}
		word.quoted = word.quoted || quoted
		word.parts = append(word.parts, part{text, variable})
	}
	flush := func() {
		if word != nil {
			tokens = append(tokens, *word)
			word = nil
		}
	}
	for len(s) > 0 {
		if op := operatorAt(s, word == nil); op != "" {
			flush()
			s = s[len(op):]
			if op == "\n" {
				op = ";"
			}
			tokens = append(tokens, token{op: op})
			continue
		}
		switch s[0] {
		case ' ', '\t', '\r':
			flush()
			s = s[1:]
		case '#':
			if word == nil {
				if i := strings.IndexByte(s, '\n'); i >= 0 {
					s = s[i:]
				} else {
					s = ""
				}
				continue
			}
			add("#", false, false)
			s = s[1:]
		case '\'':
			i := strings.IndexByte(s[1:], '\'')
			if i < 0 {
				return nil, errQuote
			}
			add(s[1:1+i], false, true)
			s = s[i+2:]
		case '"':
			rest, err := lexDouble(s[1:], add)
			if err != nil {
				return nil, err
			}
			s = rest
		case '\\':
			if len(s) > 1 {
				add(s[1:2], false, true)
				s = s[2:]
			} else {
				s = ""
			}
		case '$':
			name, rest := variableAt(s)
			if name == "" {
				add("$", false, false)
			} else {
				add(name, true, false)
			}
			s = rest
		default:
			i := 1
			for i < len(s) && !strings.ContainsRune(" \t\r\n'\"\\$;&|<>", rune(s[i])) {
				i++
			}
			add(s[:i], false, false)
			s = s[i:]
		}
	}
	flush()
	return tokens, nil
}

// operatorAt returns the operator that s begins with. A digit before > counts only
// at the begin of a word.
func operatorAt(s string, begin bool) string {
	for _, op := range operators {
		if strings.HasPrefix(s, op) && (begin || op[0] != '2') {
			return op
		}
	}
	return ""
}

// lexDouble reads up to the closing quote and returns what is behind it.
func lexDouble(s string, add func(string, bool, bool)) (string, error) {
	add("", false, true)
	for len(s) > 0 {
		switch s[0] {
		case '"':
			return s[1:], nil
		case '$':
			name, rest := variableAt(s)
			if name == "" {
				add("$", false, true)
			} else {
				add(name, true, true)
			}
			s = rest
		case '\\':
			if len(s) > 1 && strings.IndexByte("\\\"$`", s[1]) >= 0 {
				add(s[1:2], false, true)
				s = s[2:]
				continue
			}
			add("\\", false, true)
			s = s[1:]
		default:
			i := strings.IndexAny(s, "\"$\\")
			if i < 0 {
				return "", errQuote
			}
			add(s[:i], false, true)
			s = s[i:]
		}
	}
	return "", errQuote
}

// variableAt reads $name, ${name}, $? or $$.
func variableAt(s string) (name, rest string) {
	s = s[1:]
	if strings.HasPrefix(s, "{") {
		if i := strings.IndexByte(s, '}'); i > 0 {
			return s[1:i], s[i+1:]
		}
	}
	if s != "" && (s[0] == '?' || s[0] == '$') {
		return s[:1], s[1:]
	}
	i := 0
	for i < len(s) && isName(s[:i+1]) {
		i++
	}
	return s[:i], s[i:]
}
