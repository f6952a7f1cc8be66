package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

func text(name, def, usage string, at func(*Config) *string) Key {
	return Key{
		Name: name, Default: def, Usage: usage,
		set: func(c *Config, v string) error { *at(c) = v; return nil },
		get: func(c *Config) string { return *at(c) },
	}
}

func number[T int | int64](name, def, usage string, at func(*Config) *T) Key {
	return Key{
		Name: name, Default: def, Usage: usage,
		set: func(c *Config, v string) error {
			n, err := strconv.ParseInt(v, 10, 64)
			if errors.Is(err, strconv.ErrRange) {
				return fmt.Errorf("%s is too large", v)
			}
			if err != nil {
				return fmt.Errorf("%q is not a whole number", v)
			}
			*at(c) = T(n)
			return nil
		},
		get: func(c *Config) string { return strconv.FormatInt(int64(*at(c)), 10) },
	}
}

func boolean(name, usage string, at func(*Config) *bool) Key {
	return Key{
		Name: name, Default: "false", Usage: usage,
		set: func(c *Config, v string) error {
			b, err := strconv.ParseBool(v)
			if err != nil {
				return fmt.Errorf("%q is neither true nor false", v)
			}
			*at(c) = b
			return nil
		},
		get: func(c *Config) string { return strconv.FormatBool(*at(c)) },
	}
}

// list is a list of texts, separated by commas.
func list(name, usage string, at func(*Config) *[]string) Key {
	return Key{
		Name: name, Usage: usage,
		set: func(c *Config, v string) error {
			*at(c) = nil
			for item := range strings.SplitSeq(v, ",") {
				if item = strings.TrimSpace(item); item != "" {
					*at(c) = append(*at(c), item)
				}
			}
			return nil
		},
		get: func(c *Config) string { return strings.Join(*at(c), ",") },
	}
}

func hidden(k Key) Key {
	k.Hidden = true
	return k
}

// Value returns what c has for the key, spelled as it is set.
func (k Key) Value(c *Config) string { return k.get(c) }
