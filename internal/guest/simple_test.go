package guest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestSimpleCommand(t *testing.T) {
	for shell, want := range map[string][]string{
		"true":                     {"true"},
		"python cell.py":           {"python", "cell.py"},
		"  ls \t -la  /tmp/a_b ":   {"ls", "-la", "/tmp/a_b"},
		"env A=b x:y,z@1%2+3":      {"env", "A=b", "x:y,z@1%2+3"},
		"./run.sh --level=3":       {"./run.sh", "--level=3"},
		"":                         nil,
		" ":                        nil,
		"A=b env":                  nil,
		"echo a":                   nil, // a builtin
		"cd /tmp":                  nil,
		"exit 3":                   nil,
		"time ls":                  nil, // a keyword
		"a; b":                     nil,
		"a && b":                   nil,
		"a | b":                    nil,
		"a > b":                    nil,
		"a &":                      nil,
		"a $B":                     nil,
		"a `b`":                    nil,
		"a 'b'":                    nil,
		`a "b"`:                    nil,
		`a \b`:                     nil,
		"a *":                      nil,
		"a ?":                      nil,
		"a [b]":                    nil,
		"a {b,c}":                  nil,
		"a ~":                      nil,
		"a #b":                     nil,
		"a !b":                     nil,
		"a ^b":                     nil,
		"a (b)":                    nil,
		"a\nb":                     nil,
		"a \x00":                   nil,
		"a ü":                      nil,
		"function":                 nil,
		"[ a = b ]":                nil,
		"python -c print":          {"python", "-c", "print"},
		"/usr/bin/python3.11 -u x": {"/usr/bin/python3.11", "-u", "x"},
	} {
		words, ok := simpleCommand(shell)
		if ok != (want != nil) || !slices.Equal(words, want) {
			t.Errorf("%q: got %q, %v, want %q", shell, words, ok, want)
		}
	}
}

// TestSimpleAsShell runs commands in both ways and compares all that can be seen.
func TestSimpleAsShell(t *testing.T) {
	if _, err := os.Stat("/bin/bash"); err != nil {
		t.Fatal("this test compares with /bin/bash, which is missing")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "noline"), []byte("printf 'no first line %s\\n' \"$0\""), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "directory"), 0o755); err != nil {
		t.Fatal(err)
	}
	base := map[string]string{"PATH": defaultPath, "HOME": "/root", "USER": "root", "LANG": "C.UTF-8"}
	run := func(c command) (string, int) {
		cmd := exec.Cmd{Path: c.program, Args: c.args, Env: c.env, Dir: c.dir}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			return "not executed", -1
		}
		lines := strings.Split(out.String(), "\n")
		slices.Sort(lines) // a shell hands its variables on in another order
		return strings.Join(lines, "\n"), cmd.ProcessState.ExitCode()
	}
	direct := 0
	for _, env := range []map[string]string{
		{}, {"A": "b c", "odd.name": "1", "EMPTY": ""}, {"SHLVL": "3"}, {"PWD": "/wrong"}, {"OLDPWD": "/tmp"}, {"BASH_ENV": "/dev/null"},
		{"BASH_FUNC_env%%": "() { printf taken; }"}, {"UID": "7"}, {"RANDOM": "x"}, {"LC_ALL": "xx_YY"}, {"LANG": "xx_YY"}, {"LC_ALL": "C.UTF-8"}, {"_": "x"},
		{"HOSTNAME": "h", "TERM": "dumb", "COLUMNS": "80", "TMOUT": "1", "CDPATH": "/", "PS1": "$", "IFS": "x"},
	} {
		all := mergeEnv(base, env)
		var list []string
		for k, v := range all {
			list = append(list, k+"="+v)
		}
		for _, where := range []string{dir, filepath.Join(dir, "link"), "/"} {
			t.Chdir(where)
			for _, shell := range []string{"env", "/usr/bin/env", "true", "false", "ls -d .", "cat /proc/self/cmdline", "cat /no/such", "./noline", "./directory",
				"no-such-program", "/etc/passwd", "./link/noline x", "sh -c env", "readlink /proc/self/cwd", "env -i"} {
				program := command{program: "/bin/bash", args: []string{"/bin/bash", "-c", shell}, env: list, dir: where}
				want, status := run(program)
				if words, ok := simpleCommand(shell); !ok || !plainEnv(all) {
					continue
				} else if found, code := findProgram(words[0], all["PATH"]); code == 0 {
					real, err := filepath.EvalSymlinks(where)
					if err != nil {
						t.Fatal(err)
					}
					got, exit := run(command{program: found, args: words, env: append(slices.Clone(list), shellEnv(real, found)...), dir: where})
					if exit == -1 {
						continue // the shell's, after the attempt
					}
					direct++
					if got != want || exit != status {
						t.Errorf("%q with %q in %s:\n%q (%d)\nthe shell:\n%q (%d)", shell, env, where, got, exit, want, status)
					}
				}
			}
		}
	}
	if direct < 50 {
		t.Errorf("only %d were compared", direct)
	}
}
