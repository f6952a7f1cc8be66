package fake

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"

	"ringfence.dev/ringfence"
)

func cmdHead(s *shell, args []string) int {
	lines, count := int64(10), int64(-1)
	for len(args) >= 2 && (args[0] == "-n" || args[0] == "-c") {
		n, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return s.fail("head", err)
		}
		if args[0] == "-c" {
			count = n
		} else {
			lines = n
		}
		args = args[2:]
	}
	in := io.Reader(ctxReader{s.ctx, s.stdin})
	if len(args) > 0 {
		_, data, err := s.g.files.read(s.user, s.path(args[0]))
		if err != nil {
			return s.fail("head", err)
		}
		in = bytes.NewReader(data)
	}
	if count >= 0 {
		io.CopyN(s.stdout, in, count)
		return 0
	}
	r := bufio.NewReader(in)
	for ; lines > 0; lines-- {
		line, err := r.ReadBytes('\n')
		s.stdout.Write(line)
		if err != nil {
			break
		}
	}
	return 0
}

func cmdWc(s *shell, args []string) int {
	data, err := io.ReadAll(ctxReader{s.ctx, s.stdin})
	if err != nil {
		return 128
	}
	switch {
	case len(args) > 0 && args[0] == "-c":
		fmt.Fprintln(s.stdout, len(data))
	case len(args) > 0 && args[0] == "-l":
		fmt.Fprintln(s.stdout, bytes.Count(data, []byte("\n")))
	default:
		fmt.Fprintln(s.stdout, bytes.Count(data, []byte("\n")), len(bytes.Fields(data)), len(data))
	}
	return 0
}

func cmdTee(s *shell, args []string) int {
	data, err := io.ReadAll(ctxReader{s.ctx, s.stdin})
	if err != nil {
		return 128
	}
	s.stdout.Write(data)
	for _, name := range args {
		if err := s.g.files.appendTo(s.user, s.path(name), data, true); err != nil {
			return s.fail("tee", err)
		}
	}
	return 0
}

func cmdLs(s *shell, args []string) int {
	path := "."
	for _, a := range args {
		if a[0] != '-' {
			path = a
		}
	}
	entries, err := s.g.files.list(s.user, s.path(path), 1)
	if ringfence.CodeOf(err) == ringfence.CodeNotDirectory {
		fmt.Fprintln(s.stdout, path)
		return 0
	}
	if err != nil {
		return s.fail("ls", err)
	}
	for _, e := range entries {
		_, name := split(e.Path)
		fmt.Fprintln(s.stdout, name)
	}
	return 0
}

func cmdMkdir(s *shell, args []string) int {
	for _, a := range args {
		if a == "-p" {
			continue
		}
		if _, err := s.g.files.mkdir(s.user, s.path(a), "", 0); err != nil {
			return s.fail("mkdir", err)
		}
	}
	return 0
}

func cmdTouch(s *shell, args []string) int {
	for _, a := range args {
		if err := s.g.files.appendTo(s.user, s.path(a), nil, false); err != nil {
			return s.fail("touch", err)
		}
	}
	return 0
}

func cmdRm(s *shell, args []string) int {
	recursive, force := false, false
	for _, a := range args {
		switch a {
		case "-r":
			recursive = true
		case "-f":
			force = true
		case "-rf", "-fr":
			recursive, force = true, true
		default:
			err := s.g.files.remove(s.user, s.path(a), recursive)
			if force && ringfence.CodeOf(err) == ringfence.CodeFileNotFound {
				err = nil
			}
			if err != nil {
				return s.fail("rm", err)
			}
		}
	}
	return 0
}

func cmdTest(s *shell, args []string) int {
	if len(args) == 2 {
		n, err := s.g.files.find(s.user, s.path(args[1]), true)
		switch {
		case args[0] == "-n" && args[1] != "", args[0] == "-z" && args[1] == "":
			return 0
		case args[0] == "-e" && err == nil, args[0] == "-d" && err == nil && n.kind == kindDir,
			args[0] == "-f" && err == nil && n.kind == kindFile:
			return 0
		}
		return 1
	}
	if len(args) == 3 {
		if (args[1] == "=") == (args[0] == args[2]) {
			return 0
		}
	}
	return 1
}

func cmdID(s *shell, args []string) int {
	if len(args) > 0 && args[0] == "-u" {
		fmt.Fprintln(s.stdout, s.user.uid)
		return 0
	}
	fmt.Fprintf(s.stdout, "uid=%d(%s) gid=%d(%s)\n", s.user.uid, s.user.name, s.user.gid, nameOf(s.user.gid))
	return 0
}

func cmdWhoami(s *shell, _ []string) int {
	fmt.Fprintln(s.stdout, s.user.name)
	return 0
}

func cmdHostname(s *shell, _ []string) int {
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	fmt.Fprintln(s.stdout, s.g.identity.Hostname)
	return 0
}

// cmdBytes writes bytes of a small generator, in blocks.
func cmdBytes(s *shell, args []string) int {
	if len(args) == 0 {
		return 1
	}
	n, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return s.fail("fake-bytes", err)
	}
	x := uint32(1)
	block := make([]byte, 64<<10)
	for n > 0 && s.ctx.Err() == nil {
		b := block[:min(n, int64(len(block)))]
		for i := range b {
			x ^= x << 13
			x ^= x >> 17
			x ^= x << 5
			b[i] = byte(x)
		}
		if _, err := s.stdout.Write(b); err != nil {
			return 1
		}
		n -= int64(len(b))
	}
	return 0
}
