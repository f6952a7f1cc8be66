package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"ringfence.dev/ringfence"
)

// readFile returns the file at path as a source. Unknown keys are refused by name.
func readFile(path string) (Source, error) {
	named := path != ""
	if !named {
		path = DefaultFile
	}
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !named:
		return func(Key) (string, bool) { return "", false }, nil
	case err != nil:
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "cannot read the configuration file: %w", err)
	}
	var values map[string]any
	if err := toml.NewDecoder(bytes.NewReader(raw)).Decode(&values); err != nil {
		var e *toml.DecodeError
		if errors.As(err, &e) {
			row, _ := e.Position()
			return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "cannot read %s: line %d: %w", path, row, err)
		}
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "cannot read %s: %w", path, err)
	}
	spelled := map[string]string{}
	var problems []error
	for name, value := range values {
		i := slices.IndexFunc(Keys, func(k Key) bool { return k.Name == name })
		if i < 0 {
			problems = append(problems, fmt.Errorf("%s: there is no such key", name))
			continue
		}
		s, err := spell(value)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		}
		spelled[name] = s
	}
	if len(problems) > 0 {
		slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "cannot use %s: %s", path, oneLine(errors.Join(problems...))).
			WithHint("`ringfence serve --help` lists the keys")
	}
	return func(k Key) (string, bool) { s, ok := spelled[k.Name]; return s, ok }, nil
}

// spell turns a value of TOML into the text that sets its key.
func spell(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case bool:
		return strconv.FormatBool(v), nil
	case []any:
		var items []string
		for _, item := range v {
			s, ok := item.(string)
			if !ok || strings.Contains(s, ",") {
				return "", fmt.Errorf("%v is not a list of texts", value)
			}
			items = append(items, s)
		}
		return strings.Join(items, ","), nil
	}
	return "", fmt.Errorf("%v is neither a text, a whole number, true or false, nor a list of texts", value)
}
