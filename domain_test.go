package ringfence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
)

// The formats that every client depends on.
func TestFormats(t *testing.T) {
	seen := map[string]bool{}
	letters := map[rune]int{}
	for range 2000 {
		id := ringfence.NewSandboxID()
		if !regexp.MustCompile(`^[a-z0-9]{20}$`).MatchString(id) || !ringfence.ValidSandboxID(id) || seen[id] {
			t.Fatalf("sandbox id %q", id)
		}
		seen[id] = true
		for _, r := range id {
			letters[r]++
		}
	}
	for r, n := range letters { // 40,000 letters over 36: 1111 each, give or take 33
		if n < 900 || n > 1350 {
			t.Errorf("%c came %d times", r, n)
		}
	}
	for _, id := range []string{"", strings.Repeat("a", 19), strings.Repeat("a", 21), strings.Repeat("A", 20), strings.Repeat("a", 19) + "/"} {
		if ringfence.ValidSandboxID(id) {
			t.Errorf("%q passes as a sandbox id", id)
		}
	}
	if token := ringfence.NewToken(); !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(token) || !ringfence.ValidToken(token) || ringfence.ValidToken(strings.ToUpper(token[:63])+"A") {
		t.Errorf("token %q", token)
	}
	if key := ringfence.NewAPIKey(); !regexp.MustCompile(`^rf_[0-9a-f]{64}$`).MatchString(key) {
		t.Errorf("key %q", key)
	}
	at := time.Date(2026, 11, 30, 21, 0, 0, 123456789, time.FixedZone("x", 3600))
	if got := ringfence.FormatTime(at); got != "2026-11-30T20:00:00.123456Z" {
		t.Errorf("time %q", got)
	}
	if got := ringfence.FormatTime(at.Truncate(time.Second)); got != "2026-11-30T20:00:00.000000Z" {
		t.Errorf("time %q", got)
	}
	if got := ringfence.FormatTime(time.Time{}); got != "" {
		t.Errorf("zero time %q", got)
	}
}

func TestNormalizeAPIKey(t *testing.T) {
	digits := strings.Repeat("0a", 16)
	for key, want := range map[string]string{
		"rf_" + digits: "rf_" + digits, "e2b_" + digits: "rf_" + digits, "e2b_" + strings.ToUpper(digits): "rf_" + digits,
		"rf_" + strings.Repeat("0a", 64): "rf_" + strings.Repeat("0a", 64),
		"":                               "", digits: "", "rf_": "", "rf_" + digits[1:]: "", "rf_" + digits + "0": "", "RF_" + digits: "", "rf_e2b_" + digits: "",
		"rf_" + digits[:31] + "g": "", "rf_" + strings.Repeat("0a", 65): "", " rf_" + digits: "", "rf_" + digits + "\n": "",
	} {
		got, ok := ringfence.NormalizeAPIKey(key)
		if got != want || ok != (want != "") {
			t.Errorf("NormalizeAPIKey(%q) = %q, %v; want %q", key, got, ok, want)
		}
	}
}

func TestStates(t *testing.T) {
	all := []ringfence.State{ringfence.StateStarting, ringfence.StateRunning, ringfence.StatePausing, ringfence.StatePaused,
		ringfence.StateResuming, ringfence.StateFailed, ringfence.StateDeleted}
	for _, from := range all {
		if !from.Valid() {
			t.Errorf("%s is not valid", from)
		}
		if ringfence.CanMove(from, from) || ringfence.CanMove(from, ringfence.StateStarting) {
			t.Errorf("%s may move to itself or to starting", from)
		}
		// What lives can fail and be deleted; what has ended never lives again.
		for _, to := range all {
			can := ringfence.CanMove(from, to)
			if from.Ended() && can && !to.Ended() {
				t.Errorf("%s may move to %s", from, to)
			}
			if !from.Ended() && to.Ended() && !can {
				t.Errorf("%s may not move to %s", from, to)
			}
		}
	}
	if ringfence.CanMove(ringfence.StateDeleted, ringfence.StateFailed) || ringfence.State("").Valid() || ringfence.State("x").Valid() {
		t.Error("deleted moves on, or a state that is none is valid")
	}
}

func TestErrorTable(t *testing.T) {
	seen := map[ringfence.Code]bool{}
	for _, row := range ringfence.ErrorTable {
		if seen[row.Code] {
			t.Errorf("%s has two rows", row.Code)
		}
		seen[row.Code] = true
		if row.HTTP < 400 || row.HTTP > 599 || row.Exit < 1 || row.Exit > 125 || !strings.HasSuffix(row.SDK, "Error") || row.Hint == "" {
			t.Errorf("a row that makes no sense: %+v", row)
		}
		if got := ringfence.RowOf(row.Code); got != row {
			t.Errorf("RowOf(%s) = %+v", row.Code, got)
		}
	}
	if got := ringfence.RowOf("no such code"); got.Code != ringfence.CodeInternal || got.HTTP != 500 {
		t.Errorf("an unknown code becomes %+v", got)
	}
}

func TestCodeOf(t *testing.T) {
	own := ringfence.Errorf(ringfence.CodeDiskFull, "no room")
	for _, tc := range []struct {
		err  error
		want ringfence.Code
	}{
		{nil, ""}, {own, ringfence.CodeDiskFull}, {fmt.Errorf("while writing: %w", own), ringfence.CodeDiskFull},
		{errors.Join(io.EOF, own), ringfence.CodeDiskFull},
		{context.Canceled, ringfence.CodeCanceled}, {fmt.Errorf("x: %w", context.DeadlineExceeded), ringfence.CodeDeadlineExceeded},
		{io.EOF, ringfence.CodeInternal},
	} {
		if got := ringfence.CodeOf(tc.err); got != tc.want {
			t.Errorf("CodeOf(%v) = %q, want %q", tc.err, got, tc.want)
		}
	}
}

// What the log sees and what callers see.
func TestErrorText(t *testing.T) {
	hidden := ringfence.Errorf(ringfence.CodeInternal, "cannot start").WithHint("try again").WithCause(io.EOF)
	if hidden.Message != "cannot start" || hidden.Error() != "cannot start: EOF; try again" || !errors.Is(hidden, io.EOF) {
		t.Errorf("%q %q", hidden.Message, hidden.Error())
	}
	shown := ringfence.Errorf(ringfence.CodeInternal, "cannot listen: %w", io.EOF).WithField("listen")
	if shown.Message != "cannot listen: EOF" || shown.Error() != "cannot listen: EOF" || !errors.Is(shown, io.EOF) || shown.Field != "listen" {
		t.Errorf("%q %q", shown.Message, shown.Error())
	}
}
