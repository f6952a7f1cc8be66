package bench

import (
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
)

func TestPercentiles(t *testing.T) {
	times := Row{Unit: unitMS, Budget: budget(50)}
	rates := Row{Unit: unitMBs, Budget: budget(51), higher: true}
	for i := range 100 {
		times.add(float64(100 - i)) // 1 … 100
		rates.add(float64(i + 1))
	}
	times.summarize()
	rates.summarize()
	if *times.P50 != 50 || *times.P95 != 95 || *times.P99 != 99 || times.N != 100 || times.Missed {
		t.Errorf("times: %v %v %v, missed %v", *times.P50, *times.P95, *times.P99, times.Missed)
	}
	if *rates.P50 != 51 || *rates.P95 != 6 || *rates.P99 != 2 || rates.Missed {
		t.Errorf("rates: %v %v %v, missed %v", *rates.P50, *rates.P95, *rates.P99, rates.Missed)
	}
	one := Row{Unit: unitMS, Budget: budget(5)}
	one.addTime(5100 * time.Microsecond)
	one.summarize()
	if *one.P50 != 5.1 || *one.P99 != 5.1 || !one.Missed {
		t.Errorf("one sample: %+v", one)
	}
	idle := Row{Unit: unitPercent, Budget: budget(0)}
	idle.add(0.05)
	idle.summarize()
	if idle.Missed {
		t.Error("half a tick of the clock is not a missed budget")
	}
	none := Row{}
	none.summarize()
	if none.Failed == "" {
		t.Error("a row without samples passed")
	}
}

func TestChoose(t *testing.T) {
	all, err := choose(nil)
	if err != nil || len(all) != len(Names()) {
		t.Errorf("got %d rows, %v", len(all), err)
	}
	some, err := choose([]string{"stdout_1g", "exec_true"})
	if err != nil || len(some) != 2 || some[0].name != "exec_true" {
		t.Errorf("got %v, %v", some, err)
	}
	_, err = choose([]string{"exec_true", "exec_false"})
	if ringfence.CodeOf(err) != ringfence.CodeInvalidArgument || !strings.Contains(err.Error(), "exec_false") || !strings.Contains(err.Error(), "cell_pandas") {
		t.Errorf("got %v", err)
	}
}

func TestEveryRowIsWhole(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rows() {
		if seen[r.name] || r.unit == "" || r.what == "" || (r.measure == nil) == (r.later == "") {
			t.Errorf("row %+v", r)
		}
		seen[r.name] = true
	}
}

func TestChecker(t *testing.T) {
	b, err := io.ReadAll(content(3<<20 + 11))
	if err != nil || len(b) != 3<<20+11 {
		t.Fatalf("content made %d bytes, %v", len(b), err)
	}
	for _, step := range []int{1000, 4096, 1 << 20, 5 << 20} {
		c := &checker{}
		for rest := b; len(rest) > 0; rest = rest[min(step, len(rest)):] {
			_, _ = c.Write(rest[:min(step, len(rest))])
		}
		if err := c.complete(int64(len(b))); err != nil {
			t.Errorf("step %d: %v", step, err)
		}
	}
	c := &checker{period: 1<<20 + 100}
	for range 3 {
		_, _ = c.Write(b[:1<<20+100])
	}
	if err := c.complete(3 * (1<<20 + 100)); err != nil {
		t.Errorf("with a period: %v", err)
	}
	if err := c.complete(1); err == nil {
		t.Error("the wrong length passed")
	}
	b[2_000_000] ^= 1
	c = &checker{}
	_, _ = c.Write(b)
	if err := c.complete(int64(len(b))); err == nil || !strings.Contains(err.Error(), "2000000") {
		t.Errorf("a wrong byte: %v", err)
	}
}

func TestReport(t *testing.T) {
	ok := Row{Name: "exec_true", Unit: unitMS, Budget: budget(5)}
	ok.add(4.5)
	ok.summarize()
	bad := Row{Name: "file_up_1g", Unit: unitMBs, Budget: budget(500), higher: true, Note: "slow"}
	bad.add(123.4)
	bad.summarize()
	report := &Report{Machine: Machine{CPU: "A CPU", Cores: 2, Memory: 24e9, Kernel: "6.18", Go: "go1.26"}, Rows: []Row{
		ok, bad, {Name: "create_exec_pool", Unit: unitMS, Skipped: "there is no pool yet"}, {Name: "burst_100", Unit: unitMS, Skipped: "there is no pool yet"},
		{Name: "stdout_1g", Unit: unitMBs, Failed: "it broke"},
	}}
	var b strings.Builder
	if err := report.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"A CPU, 2 cores, 24.0 GB memory, Linux 6.18, go1.26", "exec_true   4.50", "ok", "MISSED  slow",
		"create_exec_pool, burst_100: there is no pool yet", "stdout_1g: failed: it broke"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table does not say %q:\n%s", want, b.String())
		}
	}
	if report.OK() {
		t.Error("a failed row is OK")
	}
	text, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`{"machine":{"cpu":"A CPU","cores":2,"memory":24000000000,"kernel":"6.18","go":"go1.26"},"rows":[{"name":"exec_true","unit":"ms","n":1,"p50":4.5,"p95":4.5,"p99":4.5,"budget":5,"missed":false}`,
		`"name":"create_exec_pool","unit":"ms","n":0,"p50":null,"p95":null,"p99":null,"budget":null`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the JSON does not hold %s:\n%s", want, text)
		}
	}
}

func TestThisMachine(t *testing.T) {
	m := thisMachine()
	if m.Cores < 1 || m.Memory < 1<<20 || m.Kernel == "unknown" {
		t.Errorf("got %+v", m)
	}
	if s, ok := readStat(os.Getpid()); !ok || s.parent != os.Getppid() {
		t.Errorf("got %+v, %v", s, ok)
	}
}
