package fake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
)

// shell runs scripts of one process.
type shell struct {
	g              *guest
	ctx            context.Context // ends with the command
	tree           context.Context // ends with all that it started
	proc           *process        // nil in a rescue
	user           user
	dir            string
	env            map[string]string
	stdin          io.Reader
	stdout, stderr io.Writer
	status         int
	exited         bool // exit was called
}

func (g *guest) newShell(ctx context.Context, u user, dir string, env map[string]string) *shell {
	return &shell{g: g, ctx: ctx, tree: ctx, user: u, dir: dir, env: env}
}

// sub is a shell of its own, for a part of a pipeline or a background job.
func (s *shell) sub(ctx context.Context) *shell {
	c := *s
	c.ctx = ctx
	c.env = maps.Clone(s.env)
	return &c
}

// runArgs runs one command without a shell.
func (s *shell) runArgs(args []string) int {
	return s.command(args)
}

// runScript runs a whole script and returns its status.
func (s *shell) runScript(script string) int {
	tokens, err := lex(script)
	if err != nil {
		fmt.Fprintf(s.stderr, "sh: syntax error: %v\n", err)
		return 2
	}
	return s.runList(tokens)
}

// runList runs tokens up to the end: commands with ; && || & | between them.
func (s *shell) runList(tokens []token) int {
	skip := false
	for len(tokens) > 0 && !s.exited && s.ctx.Err() == nil {
		n := 0
		for n < len(tokens) && !tokens[n].separates() {
			n++
		}
		pipeline := tokens[:n]
		op := ";"
		if n < len(tokens) {
			op = tokens[n].op
			n++
		}
		tokens = tokens[n:]
		if !skip && len(pipeline) > 0 {
			if op == "&" {
				s.background(pipeline)
			} else {
				s.status = s.runPipeline(pipeline)
			}
		}
		skip = op == "&&" && s.status != 0 || op == "||" && s.status == 0
	}
	return s.status
}

// background starts a pipeline that outlives the command.
func (s *shell) background(tokens []token) {
	job := s.sub(s.tree)
	job.stdin = eof{}
	go job.runPipeline(tokens)
	s.status = 0
}

func (s *shell) runPipeline(tokens []token) int {
	var parts [][]token
	for len(tokens) > 0 {
		n := 0
		for n < len(tokens) && tokens[n].op != "|" {
			n++
		}
		parts = append(parts, tokens[:n])
		tokens = tokens[min(n+1, len(tokens)):]
	}
	if len(parts) == 1 {
		return s.runSimple(parts[0])
	}
	in := s.stdin
	statuses := make(chan int, 1)
	for i, part := range parts {
		c := s.sub(s.ctx)
		c.stdin = in
		if i == len(parts)-1 {
			go func() { statuses <- c.runSimple(part) }()
			break
		}
		r, w := io.Pipe()
		c.stdout, in = w, r
		previous := c.stdin
		go func() {
			c.runSimple(part)
			w.Close()
			closeReader(previous)
		}()
	}
	status := <-statuses
	closeReader(in)
	return status
}

// closeReader tells the writer of a pipeline that nobody reads any more.
func closeReader(r io.Reader) {
	if p, ok := r.(*io.PipeReader); ok {
		p.Close()
	}
}

// runSimple runs one command with its assignments and redirections.
func (s *shell) runSimple(tokens []token) int {
	c := *s
	var words []string
	assignments := map[string]string{}
	var files []func() error
	for i := 0; i < len(tokens); i++ {
		t := tokens[i]
		switch t.op {
		case "":
			word := s.expand(t)
			name, value, ok := strings.Cut(word, "=")
			if ok && len(words) == 0 && !t.quoted && isName(name) {
				assignments[name] = value
				continue
			}
			words = append(words, word)
		case "2>&1":
			c.stderr = c.stdout
		case ">&2":
			c.stdout = c.stderr
		default:
			if i+1 >= len(tokens) || tokens[i+1].op != "" {
				fmt.Fprintf(s.stderr, "sh: syntax error after %s\n", t.op)
				return 2
			}
			i++
			done, err := c.redirect(t.op, s.expand(tokens[i]))
			if err != nil {
				fmt.Fprintf(s.stderr, "sh: %v\n", err)
				return 1
			}
			files = append(files, done)
		}
	}
	if len(words) == 0 {
		maps.Copy(s.env, assignments)
		return 0
	}
	if len(assignments) > 0 {
		c.env = maps.Clone(s.env)
		maps.Copy(c.env, assignments)
	}
	status := c.command(words)
	for _, done := range files {
		if err := done(); err != nil {
			fmt.Fprintf(s.stderr, "sh: %v\n", err)
			status = 1
		}
	}
	s.dir, s.exited = c.dir, c.exited
	if len(assignments) == 0 {
		s.env = c.env
	}
	return status
}

// redirect points an output or the input at a file; done puts the file in place.
func (s *shell) redirect(op, name string) (done func() error, err error) {
	path := s.path(name)
	if op == "<" {
		_, data, err := s.g.files.read(s.user, path)
		if err != nil {
			return nil, err
		}
		s.stdin = bytes.NewReader(data)
		return func() error { return nil }, nil
	}
	if path == "/dev/null" {
		s.setOutput(op, io.Discard)
		return func() error { return nil }, nil
	}
	if err := s.g.files.appendTo(s.user, path, nil, !strings.HasSuffix(op, ">>")); err != nil {
		return nil, err
	}
	w := &fileWriter{t: s.g.files, u: s.user, path: path}
	s.setOutput(op, w)
	return func() error { return w.err }, nil
}

func (s *shell) setOutput(op string, w io.Writer) {
	if strings.HasPrefix(op, "2") {
		s.stderr = w
	} else {
		s.stdout = w
	}
}

// fileWriter appends to a file.
type fileWriter struct {
	t    *tree
	u    user
	path string
	err  error
}

func (w *fileWriter) Write(b []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	if w.err = w.t.appendTo(w.u, w.path, b, false); w.err != nil {
		return 0, w.err
	}
	return len(b), nil
}

// path makes a name absolute.
func (s *shell) path(name string) string {
	if strings.HasPrefix(name, "/") {
		return name
	}
	return strings.TrimRight(s.dir, "/") + "/" + name
}

// expand replaces variables.
func (s *shell) expand(t token) string {
	var b strings.Builder
	for _, part := range t.parts {
		if !part.variable {
			b.WriteString(part.text)
			continue
		}
		switch part.text {
		case "?":
			fmt.Fprint(&b, s.status)
		case "$":
			pid := 1
			if s.proc != nil {
				pid = s.proc.pid
			}
			fmt.Fprint(&b, pid)
		default:
			b.WriteString(s.env[part.text])
		}
	}
	return b.String()
}

func isName(s string) bool {
	for i, r := range s {
		if r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}

var errQuote = errors.New("a quote is not closed")
