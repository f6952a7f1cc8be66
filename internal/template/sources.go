package template

import (
	"path/filepath"
	"slices"
	"strings"
)

// suiteMark stands for the recipe's suite in a source line.
const suiteMark = "@SUITE@"

// debianSources returns the host's own source lines for its Debian release, with the
// release replaced by suiteMark. A host that is not Debian has none, and then
// Debian's own servers are used.
func (h host) debianSources() []string {
	release := iniValues(h.read("/etc/os-release"))
	codename := release["VERSION_CODENAME"]
	if release["ID"] != "debian" || codename == "" {
		return nil
	}
	var out []string
	add := func(uri, suite string, components []string) {
		if suite != codename && !strings.HasPrefix(suite, codename+"-") || !slices.Contains(components, "main") {
			return
		}
		if !strings.HasPrefix(uri, "http://") && !strings.HasPrefix(uri, "https://") {
			return
		}
		// Debian's archive proper: other vendors have a suite named after the release too.
		if path := strings.TrimRight(uri, "/"); !strings.HasSuffix(path, "/debian") && !strings.HasSuffix(path, "/debian-security") {
			return
		}
		line := "deb " + uri + " " + suiteMark + strings.TrimPrefix(suite, codename) + " main"
		if !slices.Contains(out, line) {
			out = append(out, line)
		}
	}
	lists, _ := filepath.Glob(filepath.Join(h.root, "/etc/apt/sources.list.d/*.list"))
	for _, path := range append([]string{filepath.Join(h.root, "/etc/apt/sources.list")}, lists...) {
		for line := range strings.Lines(host{root: "/"}.read(path)) {
			line = strings.TrimSpace(line)
			if rest, ok := strings.CutPrefix(line, "deb ["); ok {
				_, rest, _ = strings.Cut(rest, "]")
				line = "deb " + rest
			}
			if f := strings.Fields(line); len(f) >= 4 && f[0] == "deb" {
				add(f[1], f[2], f[3:])
			}
		}
	}
	deb822, _ := filepath.Glob(filepath.Join(h.root, "/etc/apt/sources.list.d/*.sources"))
	for _, path := range deb822 {
		text := host{root: "/"}.read(path)
		for stanza := range strings.SplitSeq(text, "\n\n") {
			f := deb822Fields(stanza)
			if !slices.Contains(f["types"], "deb") || slices.Contains(f["enabled"], "no") {
				continue
			}
			for _, uri := range f["uris"] {
				for _, suite := range f["suites"] {
					add(uri, suite, f["components"])
				}
			}
		}
	}
	return out
}

func deb822Fields(stanza string) map[string][]string {
	out := map[string][]string{}
	last := ""
	for line := range strings.Lines(stanza) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		if line[0] == ' ' || line[0] == '\t' {
			out[last] = append(out[last], strings.Fields(line)...)
			continue
		}
		k, v, ok := strings.Cut(line, ":")
		if ok {
			last = strings.ToLower(k)
			out[last] = strings.Fields(v)
		}
	}
	return out
}
