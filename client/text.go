package client

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"ringfence.dev/ringfence"
)

// encode makes JSON of a body. Text that is not UTF-8 is refused: encoding/json would
// put U+FFFD in its place, and another command would run than the one meant.
func encode(body any) ([]byte, error) {
	if at := notText(reflect.ValueOf(body)); at != "" {
		at = strings.TrimPrefix(at, ".")
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "%s is not UTF-8, and JSON carries nothing else", at).
			WithHint("send such bytes through stdin or a file").WithField(at)
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "cannot encode the request: %w", err)
	}
	return raw, nil
}

// notText returns where in v the first text that is not UTF-8 stands, and "" if none does.
func notText(v reflect.Value) string {
	switch v.Kind() {
	case reflect.String:
		if !utf8.ValidString(v.String()) {
			return "." // the name comes from what holds it
		}
	case reflect.Pointer, reflect.Interface:
		return notText(v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			if at := notText(v.Index(i)); at != "" {
				return "[" + strconv.Itoa(i) + "]" + strings.TrimSuffix(at, ".")
			}
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			if notText(key) != "" || notText(v.MapIndex(key)) != "" {
				return "." + strings.ToValidUTF8(key.String(), "\uFFFD")
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			if at := notText(v.Field(i)); at != "" {
				if name == "" { // embedded
					return at
				}
				return "." + name + strings.TrimSuffix(at, ".")
			}
		}
	}
	return ""
}
