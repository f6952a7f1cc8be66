package bench

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
	"ringfence.dev/ringfence/internal/api/apitest"
	"ringfence.dev/ringfence/internal/dialect/declaw"
	"ringfence.dev/ringfence/internal/driver/fake"
)

func connect(t *testing.T) *client.Client {
	t.Helper()
	server := apitest.Start(t, fake.Options{}, declaw.Mount())
	c, err := client.New(client.Options{BaseURL: server.URL, APIKey: server.Key})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func none(t *testing.T, c *client.Client) {
	t.Helper()
	for s, err := range c.List(context.Background(), client.ListOptions{}) {
		t.Errorf("left behind: %v, %v", s, err)
	}
}

func TestRun(t *testing.T) {
	c := connect(t)
	var progress bytes.Buffer
	only := []string{"daemon_rss", "create_exec_restore", "exec_true", "commands_64", "commands_500", "cell_pandas", "file_up_1k", "file_down_1k", "file_up_10m", "file_down_10m",
		"file_up_1g", "file_down_1g", "file_up_1g_rss", "file_down_1g_rss", "stdout_1g", "dialect_declaw"}
	report, err := Run(t.Context(), Options{Client: c, Only: only, Progress: &progress, LargeBytes: 2e7, Samples: 2})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Rows) != len(only) {
		t.Errorf("%d rows, want %d", len(report.Rows), len(only))
	}
	for _, row := range report.Rows {
		switch row.Name {
		case "cell_pandas": // the sandboxes here have no python: a failed row lets the others go on
			if !strings.Contains(row.Failed, "exit code 127") {
				t.Errorf("got %+v", row)
			}
		default:
			if row.Failed != "" || row.Skipped != "" || row.N == 0 || row.P50 == nil || *row.P50 < 0 && row.Name != "dialect_declaw" {
				t.Errorf("got %+v", row)
			}
		}
		if !strings.Contains(progress.String(), row.Name+" ") {
			t.Errorf("no progress of %s", row.Name)
		}
	}
	none(t, c)
}

func TestRunInterrupted(t *testing.T) {
	c := connect(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	time.AfterFunc(300*time.Millisecond, func() { cancel(stop) })
	if _, err := Run(ctx, Options{Client: c, Only: []string{"exec_true"}, Samples: 1e9}); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
	none(t, c)
}

func TestRunWithoutServer(t *testing.T) {
	c, err := client.New(client.Options{BaseURL: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), Options{Client: c}); ringfence.CodeOf(err) != ringfence.CodeUnavailable {
		t.Errorf("got %v", err)
	}
}
