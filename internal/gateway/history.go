package gateway

import (
	"sync/atomic"

	"ringfence.dev/ringfence"
)

// History is what outlives a sandbox's Network: after a pause the next one goes on with
// it. It is of this process; another daemon begins anew. Methods may be called
// concurrently.
type History struct {
	flows    flowLog
	names    names
	standIns standIns
	sent     atomic.Int64
	received atomic.Int64
	denied   atomic.Int64
}

// Log returns the rows that the query selects, the cursor after them, and a channel
// that is closed when there is another row.
func (h *History) Log(q ringfence.NetworkLogQuery) (rows []ringfence.NetworkFlow, next uint64, more <-chan struct{}) {
	return h.flows.page(q.After, q.Limit, func(f *ringfence.NetworkFlow) bool { return q.Verdict == "" || f.Verdict == q.Verdict })
}

// Counters say what the sandbox sent and received so far, and how many flows and
// lookups were refused.
func (h *History) Counters() (sent, received, denied int64) {
	return h.sent.Load(), h.received.Load(), h.denied.Load()
}
