package bench

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"ringfence.dev/ringfence/client"
)

// dialect measures what a dialect adds to a call: the reading of a small file, which is
// quick and does not vary much. The native call and the dialect's follow each other, over
// one connection, and a sample is the difference of the two.
func dialect(path func(id, file string) string) func(*run, context.Context, *Row) error {
	return func(r *run, ctx context.Context, row *Row) error {
		s, err := r.sandbox(ctx)
		if err != nil {
			return err
		}
		token := string(s.AccessToken())
		const file = "/tmp/bench-dialect"
		content := strings.Repeat("0123456789abcdef", 64)
		if _, err := s.Files().Write(ctx, file, strings.NewReader(content), client.WriteOptions{}); err != nil {
			return err
		}
		row.Note = "reading 1 KB: the dialect's call less the native one that came before it"
		read := func(path string) (time.Duration, error) {
			began := time.Now()
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(r.o.Client.URL(), "/")+path, nil)
			if err != nil {
				return 0, err
			}
			request.Header.Set("Authorization", "Bearer "+token)
			request.Header.Set("X-Access-Token", token)
			answer, err := http.DefaultClient.Do(request)
			if err != nil {
				return 0, err
			}
			defer answer.Body.Close()
			raw, err := io.ReadAll(answer.Body)
			took := time.Since(began)
			if err == nil && (answer.StatusCode != http.StatusOK || string(raw) != content) {
				err = fmt.Errorf("%s: status %d, %d bytes", path, answer.StatusCode, len(raw))
			}
			return took, err
		}
		native := "/v1/sandboxes/" + s.ID() + "/files?path=" + url.QueryEscape(file)
		const warm = 20
		for i := range r.samples(500) + warm {
			without, err := read(native)
			if err != nil {
				return err
			}
			with, err := read(path(s.ID(), file))
			if err != nil {
				return err
			}
			if i >= warm {
				row.addTime(with - without)
			}
		}
		return nil
	}
}

func declawFile(id, file string) string {
	return "/sandboxes/" + id + "/files?username=user&path=" + url.QueryEscape(file)
}

func superserveFile(_, file string) string { return "/superserve/files?path=" + url.QueryEscape(file) }
