package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"ringfence.dev/ringfence"
)

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// decodeStrict decodes one JSON object into a struct. A field that the struct has
// not, or that comes twice, is refused by its whole name, at any depth; names have
// to be spelled exactly. Bytes that are not UTF-8 are refused: the decoder would put
// something else in their place, and another command would run than the one meant.
func decodeStrict(raw []byte, into any) error {
	if !utf8.Valid(raw) {
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "the body is not UTF-8").
			WithHint("JSON is UTF-8; a path that is not goes into a field that ends in _base64")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if err := checkFields(dec, reflect.TypeOf(into).Elem(), "", false); err != nil {
		return jsonError(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "the body holds more than one JSON value")
	}
	return jsonError(json.Unmarshal(raw, into))
}

// checkFields reads one value and compares the names in it with a type. element says
// that it stands in a list or a map, where Unmarshal does not.
func checkFields(dec *json.Decoder, t reflect.Type, at string, element bool) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case reflect.PointerTo(t).Implements(unmarshaler) || t.Kind() != reflect.Struct && t.Kind() != reflect.Map && t.Kind() != reflect.Slice:
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil || !element {
			return err
		}
		return checkElement(raw, t, strings.TrimSuffix(at, "."))
	case t.Kind() == reflect.Slice:
		return eachElement(dec, t.Elem(), at)
	}
	var known []string
	fields := map[string]reflect.Type{}
	if t.Kind() == reflect.Struct {
		for _, f := range reflect.VisibleFields(t) {
			if f.Anonymous {
				continue // its fields are among them
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			fields[name] = f.Type
			known = append(known, name)
		}
	}
	token, err := dec.Token()
	if err != nil {
		return err
	}
	if token != json.Delim('{') {
		return skipRest(dec, token) // Unmarshal names the wrong kind
	}
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return err
		}
		name := token.(string) // the decoder gives no other keys
		full := at + name
		inner, ok := fields[name]
		switch {
		case t.Kind() == reflect.Map:
			inner = t.Elem()
		case !ok:
			return invalid(full, "there is no field %q here", short(full)).WithHint("%s", knownNames("the fields here are", known))
		}
		if seen[name] {
			return invalid(full, "the field %q is given twice", short(full))
		}
		seen[name] = true
		if err := checkFields(dec, inner, full+".", t.Kind() == reflect.Map); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return err
}

func eachElement(dec *json.Decoder, t reflect.Type, at string) error {
	token, err := dec.Token()
	if err != nil {
		return err
	}
	if token != json.Delim('[') {
		return skipRest(dec, token)
	}
	at = strings.TrimSuffix(at, ".")
	for i := 0; dec.More(); i++ {
		if err := checkFields(dec, t, at+"["+strconv.Itoa(i)+"].", true); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return err
}

// checkElement looks at a value in a list or a map. Unmarshal would take null for an
// empty one, and would name the list where the element has the wrong type.
func checkElement(raw json.RawMessage, t reflect.Type, at string) error {
	var kind *json.UnmarshalTypeError
	switch {
	case string(raw) == "null":
		return invalid(at, "%s has to be %s, not null", short(at), kindName(t))
	case errors.As(json.Unmarshal(raw, reflect.New(t).Interface()), &kind):
		return wrongKind(at, kind)
	}
	return nil
}

// skipRest skips what is left of a value whose first token was read.
func skipRest(dec *json.Decoder, token json.Token) error {
	depth := 0
	for {
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
		var err error
		if token, err = dec.Token(); err != nil {
			return err
		}
	}
}

// jsonError turns an error of encoding/json into one that a caller can act on.
func jsonError(err error) error {
	var own *ringfence.Error
	var kind *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return own
	case errors.As(err, &kind):
		field := kind.Field
		if field == "" {
			return ringfence.Errorf(ringfence.CodeInvalidArgument, "the body has to be a JSON object, not %s", kind.Value)
		}
		return wrongKind(field, kind)
	case errors.As(err, &syntax):
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "the body is no JSON: %w (at byte %d)", err, syntax.Offset)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "the body is no JSON: it ends too early")
	}
	return ringfence.Errorf(ringfence.CodeInvalidArgument, "the body cannot be read").WithCause(err)
}

// wrongKind says what a value has to be. A number that is none of a whole number's
// says so too: it has a point, an exponent or too many digits.
func wrongKind(field string, kind *json.UnmarshalTypeError) error {
	if number, ok := strings.CutPrefix(kind.Value, "number "); ok && kind.Type.Kind() != reflect.Float64 {
		return invalid(field, "%s is %s; it has to be %s of at most %d bits, without a point or an exponent",
			short(field), short(number), kindName(kind.Type), kind.Type.Bits())
	}
	return invalid(field, "%s has to be %s, not %s", short(field), kindName(kind.Type), kind.Value)
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Uint16, reflect.Uint64:
		return "a whole number from 0"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}
