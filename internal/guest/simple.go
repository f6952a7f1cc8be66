package guest

import "strings"

// A shell that is given nothing but a program's name and plain words starts, reads its
// own libraries and then becomes the program. In a sandbox that costs a third of the
// smallest command, so the agent starts the program itself where that is exactly the
// same. Everything else, and every program that cannot be started, is the shell's.

// simpleCommand returns the words of a shell command that is one program with plain
// words: no quotes, expansions, operators, assignments, builtins or keywords.
func simpleCommand(shell string) ([]string, bool) {
	for i := range len(shell) {
		if !plainByte(shell[i]) {
			return nil, false
		}
	}
	words := strings.FieldsFunc(shell, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(words) == 0 || shellWords[words[0]] || strings.Contains(words[0], "=") {
		return nil, false
	}
	return words, true
}

// plainByte reports whether a byte stands for itself wherever it is in a word, or
// separates words.
func plainByte(b byte) bool {
	switch {
	case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9':
		return true
	}
	return strings.IndexByte(" \t_-./:,+@%=", b) >= 0
}

// shellWords are bash's builtins and keywords, which may differ from a program of the
// same name. true and false, which do not, are left out.
var shellWords = wordSet(`. : [ alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs disown echo
	enable eval exec exit export fc fg getopts hash help history jobs kill let local logout mapfile popd printf pushd pwd read readarray
	readonly return set shift shopt source suspend test times trap type typeset ulimit umask unalias unset wait
	if then else elif fi case esac for select while until do done in function time coproc`)

func wordSet(list string) map[string]bool {
	set := map[string]bool{}
	for _, word := range strings.Fields(list) {
		set[word] = true
	}
	return set
}

// plainEnv reports whether a shell would do nothing with these variables but hand
// them on.
func plainEnv(env map[string]string) bool {
	for k := range env {
		switch k {
		case "SHELLOPTS", "POSIXLY_CORRECT", "ENV", "EXECIGNORE", "IFS", "PWD", "OLDPWD", "SHLVL", "_",
			"UID", "EUID", "PPID", "GROUPS", "DIRSTACK", "FUNCNAME", "RANDOM", "SRANDOM", "SECONDS", "LINENO",
			"EPOCHSECONDS", "EPOCHREALTIME", "OPTIND", "OPTERR":
			return false
		case "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "LC_COLLATE", "LC_NUMERIC", "LANG": // bash warns of one that it has not
			if v := env[k]; v != "C" && v != "POSIX" && v != "C.UTF-8" && v != "C.utf8" {
				return false
			}
		}
		if strings.HasPrefix(k, "BASH") { // options, and functions that take a program's place
			return false
		}
	}
	return true
}

// shellEnv is what a shell tells the program that it becomes.
func shellEnv(dir, program string) []string {
	return []string{"PWD=" + dir, "SHLVL=0", "_=" + program}
}
