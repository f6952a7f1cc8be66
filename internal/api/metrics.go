package api

import (
	"math"
	"time"

	"ringfence.dev/ringfence"
)

type sampleWire struct {
	At                   *string `json:"at"`
	CPUSeconds           float64 `json:"cpu_seconds"`
	CPUPercent           float64 `json:"cpu_percent"`
	MemoryBytes          int64   `json:"memory_bytes"`
	MemoryLimitBytes     int64   `json:"memory_limit_bytes"`
	DiskBytes            int64   `json:"disk_bytes"`
	DiskLimitBytes       int64   `json:"disk_limit_bytes"`
	NetworkReceivedBytes int64   `json:"network_received_bytes"`
	NetworkSentBytes     int64   `json:"network_sent_bytes"`
	NetworkDenied        int64   `json:"network_denied"`
	Processes            int     `json:"processes"`
}

func wireSample(s ringfence.Sample) sampleWire {
	return sampleWire{At: wireTime(s.At), CPUSeconds: s.CPUSeconds, CPUPercent: math.Round(s.CPUPercent*10) / 10,
		MemoryBytes: s.MemoryBytes, MemoryLimitBytes: s.MemoryLimitBytes, DiskBytes: s.DiskBytes, DiskLimitBytes: s.DiskLimitBytes,
		NetworkReceivedBytes: s.NetworkReceivedBytes, NetworkSentBytes: s.NetworkSentBytes, NetworkDenied: s.NetworkDenied, Processes: s.Processes}
}

// metrics says what a sandbox uses, now and between two times.
func (c *call) metrics() error {
	var bounds [2]time.Time
	for i, name := range []string{"from", "to"} {
		if text := c.query.Get(name); text != "" {
			t, err := time.Parse(time.RFC3339Nano, text)
			if err != nil {
				return invalid(name, "%s is not a time as RFC 3339 spells it", name).WithHint("such as %s", ringfence.FormatTime(time.Now()))
			}
			bounds[i] = t
		}
	}
	now, samples, err := c.Engine.Metrics(c.r.Context(), c.who.Project, c.r.PathValue("id"), bounds[0], bounds[1])
	if err != nil {
		return err
	}
	out := struct {
		Now     sampleWire   `json:"now"`
		Samples []sampleWire `json:"samples"`
	}{wireSample(now), make([]sampleWire, 0, len(samples))}
	for _, s := range samples {
		out.Samples = append(out.Samples, wireSample(s))
	}
	return c.reply(200, out)
}
