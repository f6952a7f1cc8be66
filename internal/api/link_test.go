package api

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// FuzzLink: a link that is taken has one spelling, and nothing of it is left in the query
// that goes on.
func FuzzLink(f *testing.F) {
	good := strings.Repeat("0a", 32)
	f.Add("rf_expires=1796088038&rf_signature=" + good)
	f.Add("a=1&rf_expires=1&b=%zz&rf_signature=" + good + "&rf_expires=2")
	f.Add("%72f_expires=1&rf%5Fsignature=" + good)
	f.Fuzz(func(t *testing.T, raw string) {
		link, given, err := linkOfQuery(raw)
		if given && err == nil {
			if again, _, err := linkOfQuery(link.query()); err != nil || again.String() != link.String() {
				t.Errorf("%q: %v, again %v %v", raw, link, again, err)
			}
			if parsed, err := parseLink(strings.Cut(link.String(), ".")); err != nil || parsed.String() != link.String() {
				t.Errorf("%q as a cookie: %v %v", raw, parsed, err)
			}
		}
		rest := withoutLink(raw)
		if _, given, _ := linkOfQuery(rest); given {
			t.Errorf("%q leaves %q", raw, rest)
		}
		values, _ := url.ParseQuery(rest)
		if values.Has(linkExpires) || values.Has(linkSignature) {
			t.Errorf("%q leaves %v", raw, values)
		}
	})
}

// FuzzLocation: wherever a guest sends its client, it is below the prefix or at another origin.
func FuzzLocation(f *testing.F) {
	for _, s := range []string{"/x", "../..", "//api.example/v1", "http:///api.example/v1", `\\api.example\v1`, "http:v1", "/%2e%2e/%2e%2e/v1", "?x", "https://e.example"} {
		f.Add(s, "/d/f")
	}
	p := portAddress{sandbox: "abcdefghij0123456789", port: 8000, prefix: "/v1/sandboxes/abcdefghij0123456789/ports/8000"}
	f.Fuzz(func(t *testing.T, location, rest string) {
		p.rest = "/" + rest
		in := &http.Request{Host: "api.example", Header: http.Header{}, URL: &url.URL{Path: "/"}}
		moved, elsewhere := moveLocation(in, location, p)
		to, err := url.Parse(moved)
		if err != nil {
			t.Fatalf("%q became %q: %v", location, moved, err)
		}
		if elsewhere {
			if to.Host == "" || strings.EqualFold(to.Host, "api.example") || to.Scheme != "http" && to.Scheme != "https" {
				t.Errorf("%q became %q", location, moved)
			}
			return
		}
		base := &url.URL{Scheme: "http", Host: "api.example", Path: "/"}
		if end := base.ResolveReference(to); end.Host != "api.example" || !strings.HasPrefix(end.EscapedPath(), p.prefix+"/") || strings.ContainsAny(to.EscapedPath(), `\`) {
			t.Errorf("%q became %q, which is %v", location, moved, end)
		}
	})
}
