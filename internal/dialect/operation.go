package dialect

import (
	"fmt"
	"slices"
	"strings"
)

// Support is how far an operation does here what it does in the original.
type Support string

// How far.
const (
	Works   Support = "works"
	Differs Support = "differs" // it works, and How says what is not as in the original
	Refused Support = "refused" // with an error of class Error whose message holds Message
)

// Operation is a row of a dialect's table: something that a program does with the
// product's SDK. A test does each of them with the published packages.
type Operation struct {
	Group   string // the heading that it stands under; rows of one group follow each other
	Name    string // as it is spelled in the SDKs; unique in the table
	Route   string // what it comes to, such as "POST /sandboxes"; empty: no request
	Support Support
	How     string // what differs, or why it is refused
	Message string // of a Refused one: what the error says at least
	Error   string // of a Refused one: the SDK's class of errors
	// Only names the packages in which there is such a thing, such as "python", or
	// "python-1.7.0" for one version alone; nil: in all.
	Only []string
}

// In reports whether a package, such as "python-1.7.0", has the operation.
func (o Operation) In(run string) bool {
	language, _, _ := strings.Cut(run, "-")
	return len(o.Only) == 0 || slices.Contains(o.Only, run) || slices.Contains(o.Only, language)
}

// Check reports what is wrong with a table.
func Check(table []Operation) error {
	seen := map[string]bool{}
	groups := map[string]bool{}
	last := ""
	for _, o := range table {
		switch {
		case o.Name == "" || o.Group == "":
			return fmt.Errorf("the row %q has no name or no group", o.Name)
		case seen[o.Name]:
			return fmt.Errorf("the row %q is there twice", o.Name)
		case o.Group != last && groups[o.Group]:
			return fmt.Errorf("the rows of %q do not follow each other", o.Group)
		case o.Support == Works && o.How != "", o.Support != Works && o.How == "":
			return fmt.Errorf("the row %q: How belongs to what differs or is refused", o.Name)
		case (o.Support == Refused) != (o.Message != "" && o.Error != ""):
			return fmt.Errorf("the row %q: Message and Error belong to what is refused", o.Name)
		case o.Support != Works && o.Support != Differs && o.Support != Refused:
			return fmt.Errorf("the row %q is of an unknown support %q", o.Name, o.Support)
		}
		seen[o.Name], groups[o.Group], last = true, true, o.Group
	}
	return nil
}

// Document is the page of docs/compatibility that a table makes: the introduction, then
// a table for each group.
func Document(introduction string, table []Operation) []byte {
	var b strings.Builder
	b.WriteString("<!-- Made from the dialect's table by its test, with -update; the tests do each row with the published packages. -->\n")
	b.WriteString(strings.TrimSpace(introduction) + "\n")
	count := map[Support]int{}
	for _, o := range table {
		count[o.Support]++
	}
	fmt.Fprintf(&b, "\n%d operations: %d work, %d differ, %d are refused with a message that names them.\n", len(table), count[Works], count[Differs], count[Refused])
	last := ""
	for _, o := range table {
		if o.Group != last {
			fmt.Fprintf(&b, "\n## %s\n| operation | request | | how |\n|---|---|---|---|\n", o.Group)
			last = o.Group
		}
		how := o.How
		if o.Support == Refused {
			how += fmt.Sprintf("; `%s`, “%s”", o.Error, o.Message)
		}
		if len(o.Only) > 0 {
			how = strings.TrimPrefix(how+"; only in "+strings.Join(o.Only, ", "), "; ")
		}
		route := ""
		if o.Route != "" {
			route = "`" + o.Route + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", cell(o.Name), cell(route), o.Support, cell(how))
	}
	return []byte(b.String())
}

func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
