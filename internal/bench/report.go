package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is what was measured.
type Report struct {
	Machine Machine `json:"machine"`
	Rows    []Row   `json:"rows"`
}

// Row is one line of the report. P95 and P99 are the values that 95 and 99 of 100
// samples reach or do better than: high for a time, low for a rate.
type Row struct {
	Name    string   `json:"name"`
	Unit    string   `json:"unit"`
	N       int      `json:"n"` // samples; 0 when it was not measured
	P50     *float64 `json:"p50"`
	P95     *float64 `json:"p95"`
	P99     *float64 `json:"p99"`
	Budget  *float64 `json:"budget"`            // for P50; null: none
	Missed  bool     `json:"missed"`            // whether P50 does not keep to the budget
	Note    string   `json:"note,omitempty"`    // what to know when reading the figures
	Skipped string   `json:"skipped,omitempty"` // why it was not measured
	Failed  string   `json:"failed,omitempty"`  // what went wrong

	higher bool
	values []float64
}

// add takes a sample in the row's unit.
func (r *Row) add(v float64) { r.values = append(r.values, v) }

// addTime takes a duration as a sample of a row in milliseconds.
func (r *Row) addTime(d time.Duration) { r.add(float64(d.Nanoseconds()) / 1e6) }

// addRate takes so many bytes in so long as a sample of a row in MB/s.
func (r *Row) addRate(bytes int64, d time.Duration) { r.add(float64(bytes) / 1e6 / d.Seconds()) }

// cpuTolerance is what the clock of /proc cannot tell from nothing.
const cpuTolerance = 0.1

// summarize makes the percentiles of the samples.
func (r *Row) summarize() {
	r.N = len(r.values)
	if r.N == 0 {
		r.Failed = "no sample was taken"
		return
	}
	sorted := slices.Sorted(slices.Values(r.values))
	if r.higher {
		slices.Reverse(sorted)
	}
	r.P50, r.P95, r.P99 = percentile(sorted, 50), percentile(sorted, 95), percentile(sorted, 99)
	if r.Budget == nil {
		return
	}
	switch limit := *r.Budget; {
	case r.higher:
		r.Missed = *r.P50 < limit
	case r.Unit == unitPercent:
		r.Missed = *r.P50 > limit+cpuTolerance
	default:
		r.Missed = *r.P50 > limit
	}
}

// percentile returns the smallest value that p of 100 samples do not pass, in the
// order from good to bad, rounded to three decimals.
func percentile(sorted []float64, p float64) *float64 {
	i := int(math.Ceil(p/100*float64(len(sorted)))) - 1
	v := math.Round(sorted[max(i, 0)]*1000) / 1000
	return &v
}

// OK reports whether every row was measured or could not be.
func (r *Report) OK() bool {
	return !slices.ContainsFunc(r.Rows, func(r Row) bool { return r.Failed != "" })
}

// WriteTable prints the report for people. Rows that wait for a later part of
// Ringfence, or that cannot be measured here, are listed below with the reason.
func (r *Report) WriteTable(w io.Writer) error {
	m := r.Machine
	fmt.Fprintf(w, "%s, %d cores, %.1f GB memory, Linux %s, %s\n\n", m.CPU, m.Cores, float64(m.Memory)/1e9, m.Kernel, m.Go)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "row\tp50\tp95\tp99\tunit\tn\tbudget\t\tnote")
	reasons := map[string][]string{}
	var order []string
	for _, row := range r.Rows {
		reason := row.Skipped
		if row.Failed != "" {
			reason = "failed: " + row.Failed
		}
		if reason != "" {
			if reasons[reason] == nil {
				order = append(order, reason)
			}
			reasons[reason] = append(reasons[reason], row.Name)
			continue
		}
		limit, verdict := "", ""
		if row.Budget != nil {
			limit, verdict = figure(*row.Budget), "ok"
			if row.Missed {
				verdict = "MISSED"
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", row.Name, figure(*row.P50), figure(*row.P95), figure(*row.P99), row.Unit, row.N, limit, verdict, row.Note)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(order) > 0 {
		fmt.Fprintln(w, "\nnot measured:")
	}
	for _, reason := range order {
		if _, err := fmt.Fprintf(w, "  %s: %s\n", strings.Join(reasons[reason], ", "), reason); err != nil {
			return err
		}
	}
	return nil
}

// short is a row on one line of the progress.
func (r *Row) short() string {
	switch {
	case r.Failed != "":
		return "failed: " + r.Failed
	case r.Skipped != "":
		return "not measured: " + r.Skipped
	}
	return figure(*r.P50) + " " + r.Unit
}

// figure prints a number with about three digits.
func figure(v float64) string {
	switch {
	case v >= 100 || v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
