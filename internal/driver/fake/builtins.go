package fake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	gopath "path"
	"sort"
	"strconv"
	"strings"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
)

// command runs one command by name.
func (s *shell) command(args []string) int {
	run := commands[args[0]]
	if i := strings.LastIndexByte(args[0], '/'); i >= 0 && run == nil {
		run = commands[args[0][i+1:]]
	}
	if run == nil {
		fmt.Fprintf(s.stderr, "sh: %s: not found\n", args[0])
		return 127
	}
	if s.ctx.Err() != nil {
		return 128
	}
	return run(s, args[1:])
}

var commands map[string]func(*shell, []string) int

func init() {
	commands = map[string]func(*shell, []string) int{
		"true": ok, ":": ok, "false": func(*shell, []string) int { return 1 },
		"exit": cmdExit, "echo": cmdEcho, "printf": cmdPrintf, "cat": cmdCat, "env": cmdEnv, "export": cmdExport,
		"pwd": cmdPwd, "cd": cmdCd, "sleep": cmdSleep, "yes": cmdYes, "seq": cmdSeq, "head": cmdHead, "wc": cmdWc,
		"tee": cmdTee, "ls": cmdLs, "mkdir": cmdMkdir, "touch": cmdTouch, "rm": cmdRm, "test": cmdTest,
		"id": cmdID, "whoami": cmdWhoami, "hostname": cmdHostname, "sh": cmdSh, "bash": cmdSh,
		"fake-bytes": cmdBytes, "fake-crash": cmdCrash, "fake-oom": cmdOOM, "fake-oom-sandbox": cmdOOMSandbox, "fake-hang": cmdHang, "fake-serve": cmdServe,
	}
}

func ok(*shell, []string) int { return 0 }

// fail prints why a command failed.
func (s *shell) fail(name string, err error) int {
	var e *ringfence.Error
	if errors.As(err, &e) {
		err = errors.New(e.Message)
	}
	fmt.Fprintf(s.stderr, "%s: %v\n", name, err)
	return 1
}

func cmdExit(s *shell, args []string) int {
	s.exited = true
	if len(args) == 0 {
		return s.status
	}
	n, err := strconv.Atoi(args[0])
	if err != nil {
		fmt.Fprintf(s.stderr, "exit: %s: not a number\n", args[0])
		return 2
	}
	return n & 255
}

func cmdEcho(s *shell, args []string) int {
	newline := "\n"
	if len(args) > 0 && args[0] == "-n" {
		newline, args = "", args[1:]
	}
	if _, err := io.WriteString(s.stdout, strings.Join(args, " ")+newline); err != nil {
		return 1
	}
	return 0
}

// cmdPrintf knows %s %d %% and the escapes \n \t \r \\ \0 \xHH and octal ones.
func cmdPrintf(s *shell, args []string) int {
	if len(args) == 0 {
		return 2
	}
	format, args := args[0], args[1:]
	var b bytes.Buffer
	for {
		used := false
		for i := 0; i < len(format); i++ {
			switch {
			case format[i] == '\\' && i+1 < len(format):
				i += unescape(&b, format[i+1:])
			case format[i] == '%' && i+1 < len(format):
				i++
				switch format[i] {
				case '%':
					b.WriteByte('%')
				default:
					if len(args) > 0 {
						b.WriteString(args[0])
						args, used = args[1:], true
					}
				}
			default:
				b.WriteByte(format[i])
			}
		}
		if len(args) == 0 || !used {
			break
		}
	}
	if _, err := s.stdout.Write(b.Bytes()); err != nil {
		return 1
	}
	return 0
}

// unescape writes one escape and returns how many bytes of s it took.
func unescape(b *bytes.Buffer, s string) int {
	switch s[0] {
	case 'n':
		b.WriteByte('\n')
	case 't':
		b.WriteByte('\t')
	case 'r':
		b.WriteByte('\r')
	case '\\':
		b.WriteByte('\\')
	case 'x':
		if len(s) >= 3 {
			if n, err := strconv.ParseUint(s[1:3], 16, 8); err == nil {
				b.WriteByte(byte(n))
				return 3
			}
		}
	case '0', '1', '2', '3', '4', '5', '6', '7':
		n := 1
		for n < len(s) && n < 3 && s[n] >= '0' && s[n] <= '7' {
			n++
		}
		v, _ := strconv.ParseUint(s[:n], 8, 16)
		b.WriteByte(byte(v))
		return n
	default:
		b.WriteByte('\\')
		b.WriteByte(s[0])
	}
	return 1
}

func cmdCat(s *shell, args []string) int {
	if len(args) == 0 {
		args = []string{"-"}
	}
	status := 0
	for _, name := range args {
		var err error
		if name == "-" {
			_, err = io.Copy(s.stdout, ctxReader{s.ctx, s.stdin})
		} else {
			var data []byte
			if _, data, err = s.g.files.read(s.user, s.path(name)); err == nil {
				_, err = s.stdout.Write(data)
			}
		}
		if err != nil && s.ctx.Err() == nil {
			status = s.fail("cat", err)
		}
	}
	return status
}

// ctxReader stops reading when a command is killed. The read that hangs is left
// behind; it ends with the input.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c ctxReader) Read(b []byte) (int, error) {
	type result struct {
		buf []byte
		err error
	}
	got := make(chan result, 1)
	go func() {
		buf := make([]byte, len(b))
		n, err := c.r.Read(buf)
		got <- result{buf[:n], err}
	}()
	select {
	case r := <-got:
		return copy(b, r.buf), r.err
	case <-c.ctx.Done():
		return 0, context.Cause(c.ctx)
	}
}

func cmdEnv(s *shell, _ []string) int {
	var lines []string
	for k, v := range s.env {
		lines = append(lines, k+"="+v+"\n")
	}
	sort.Strings(lines)
	io.WriteString(s.stdout, strings.Join(lines, ""))
	return 0
}

func cmdExport(s *shell, args []string) int {
	for _, a := range args {
		if name, value, ok := strings.Cut(a, "="); ok && isName(name) {
			s.env[name] = value
		}
	}
	return 0
}

func cmdPwd(s *shell, _ []string) int {
	fmt.Fprintln(s.stdout, clean(s.dir))
	return 0
}

func cmdCd(s *shell, args []string) int {
	dir := s.env["HOME"]
	if len(args) > 0 {
		dir = args[0]
	}
	n, err := s.g.files.find(s.user, s.path(dir), true)
	if err == nil && n.kind != kindDir {
		err = notDir(dir)
	}
	if err != nil {
		return s.fail("cd", err)
	}
	s.dir = gopath.Clean(s.path(dir))
	return 0
}

func cmdSleep(s *shell, args []string) int {
	if len(args) == 0 {
		return 1
	}
	d, err := strconv.ParseFloat(args[0], 64)
	if err != nil {
		return s.fail("sleep", err)
	}
	select {
	case <-time.After(time.Duration(d * float64(time.Second))):
		return 0
	case <-s.ctx.Done():
		return 128
	}
}

func cmdYes(s *shell, args []string) int {
	line := "y"
	if len(args) > 0 {
		line = strings.Join(args, " ")
	}
	block := []byte(strings.Repeat(line+"\n", max(1, 8192/(len(line)+1))))
	for s.ctx.Err() == nil {
		if _, err := s.stdout.Write(block); err != nil {
			return 1
		}
	}
	return 128
}

func cmdSeq(s *shell, args []string) int {
	if len(args) == 0 {
		return 1
	}
	first := 1
	last, err := strconv.Atoi(args[len(args)-1])
	if err == nil && len(args) > 1 {
		first, err = strconv.Atoi(args[0])
	}
	if err != nil {
		return s.fail("seq", err)
	}
	for i := first; i <= last && s.ctx.Err() == nil; i++ {
		if _, err := fmt.Fprintln(s.stdout, i); err != nil {
			return 1
		}
	}
	return 0
}

func cmdSh(s *shell, args []string) int {
	var sub *shell
	switch {
	case len(args) >= 2 && args[0] == "-c":
		sub = s.sub(s.ctx)
		return sub.runScript(args[1])
	case len(args) == 1:
		_, data, err := s.g.files.read(s.user, s.path(args[0]))
		if err != nil {
			s.fail("sh", err)
			return 127
		}
		sub = s.sub(s.ctx)
		return sub.runScript(string(data))
	case len(args) == 0:
		data, err := io.ReadAll(ctxReader{s.ctx, s.stdin})
		if err != nil {
			return 128
		}
		sub = s.sub(s.ctx)
		return sub.runScript(string(data))
	}
	return 2
}

func cmdCrash(s *shell, args []string) int {
	if status := cmdSleep(s, append(args, "0")); status != 0 {
		return status
	}
	s.g.die(driver.Exit{Reason: ringfence.ReasonCrashed, Detail: "the sandbox crashed as it was told to"})
	<-s.g.ctx.Done()
	return 128
}

func cmdOOM(s *shell, _ []string) int {
	if s.proc != nil {
		s.proc.endMain(killedError{9, "oom"})
	}
	<-s.ctx.Done()
	return 137
}

func cmdOOMSandbox(s *shell, _ []string) int {
	s.g.die(driver.Exit{Reason: ringfence.ReasonOOM, Detail: "the sandbox used more than its memory and the host ended it"})
	<-s.g.ctx.Done()
	return 137
}

func cmdHang(s *shell, _ []string) int {
	s.g.hang()
	<-s.ctx.Done()
	return 128
}
