package client

import (
	"context"
	"iter"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"ringfence.dev/ringfence"
)

// Network returns the policy that is in force.
func (s *Sandbox) Network(ctx context.Context) (ringfence.NetworkPolicy, error) {
	var w wireNetwork
	err := s.c.call(ctx, request{method: http.MethodGet, path: s.path("/network"), idempotent: true, what: "read the network policy"}, &w)
	return w.policy(), err
}

// UpdateNetwork puts another policy in place of the whole present one. It holds for
// new flows at once; flows that it denies are cut. Errors: invalid_argument names the
// bad entry. It needs an API key: a sandbox's access token does not open it.
func (s *Sandbox) UpdateNetwork(ctx context.Context, p ringfence.NetworkPolicy) error {
	body := wireNetwork{AllowOut: p.AllowOut, DenyOut: p.DenyOut, AllowInternetAccess: p.AllowInternetAccess, ClosedPorts: p.ClosedPorts}
	return s.c.call(ctx, request{method: http.MethodPut, path: s.path("/network"), body: body, idempotent: true, what: "change the network policy"}, nil)
}

// NetworkLogOptions select rows of a network log.
type NetworkLogOptions struct {
	Verdict ringfence.Verdict // "": all
	Cursor  string            // of the page before; "": from the oldest that is kept
	Limit   int               // 1 to 1000; 100 when 0
	// Wait is how long to wait for the first row when there is none: whole seconds, at most 60.
	Wait time.Duration
}

// NetworkLog returns rows of the sandbox's network log, the oldest change first: a
// flow comes when it begins and again, under the same ID, when it has ended. The
// cursor continues after them. The newest 1000 rows are kept, until the server restarts.
func (s *Sandbox) NetworkLog(ctx context.Context, o NetworkLogOptions) (rows []ringfence.NetworkFlow, cursor string, err error) {
	query := url.Values{}
	for name, value := range map[string]string{"verdict": string(o.Verdict), "cursor": o.Cursor} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if o.Limit != 0 {
		query.Set("limit", strconv.Itoa(o.Limit))
	}
	if o.Wait > 0 {
		query.Set("wait_seconds", strconv.Itoa(int(o.Wait/time.Second)))
	}
	var w struct {
		Flows      []wireFlow `json:"flows"`
		NextCursor string     `json:"next_cursor"`
	}
	err = s.c.call(ctx, request{method: http.MethodGet, path: s.path("/network/log"), query: query, idempotent: true, what: "read the network log"}, &w)
	for _, f := range w.Flows {
		rows = append(rows, f.flow())
	}
	return rows, w.NextCursor, err
}

// NetworkFlows goes through the rows of the sandbox's network log, as NetworkLog does page
// by page; o.Limit is the size of a page, 1000 when 0. With follow it waits for more at
// the end, until ctx ends. An error ends the sequence.
func (s *Sandbox) NetworkFlows(ctx context.Context, o NetworkLogOptions, follow bool) iter.Seq2[ringfence.NetworkFlow, error] {
	return func(yield func(ringfence.NetworkFlow, error) bool) {
		if o.Limit == 0 {
			o.Limit = 1000
		}
		if follow {
			o.Wait = 30 * time.Second
		}
		for {
			rows, cursor, err := s.NetworkLog(ctx, o)
			if err != nil {
				yield(ringfence.NetworkFlow{}, err)
				return
			}
			for _, f := range rows {
				if !yield(f, nil) {
					return
				}
			}
			if len(rows) == 0 && !follow {
				return
			}
			o.Cursor = cursor
		}
	}
}

type wireFlow struct {
	ID              int64             `json:"id"`
	At              time.Time         `json:"at"`
	Name            string            `json:"name"`
	Address         string            `json:"address"`
	Port            uint16            `json:"port"`
	Protocol        string            `json:"protocol"`
	Verdict         ringfence.Verdict `json:"verdict"`
	Reason          string            `json:"reason"`
	Rule            string            `json:"rule"`
	BytesSent       int64             `json:"bytes_sent"`
	BytesReceived   int64             `json:"bytes_received"`
	DurationSeconds *float64          `json:"duration_seconds"`
	Count           int64             `json:"count"`
}

func (w wireFlow) flow() ringfence.NetworkFlow {
	f := ringfence.NetworkFlow{
		ID: w.ID, At: w.At, Name: w.Name, Port: w.Port, Protocol: w.Protocol, Verdict: w.Verdict, Reason: w.Reason, Rule: w.Rule,
		BytesSent: w.BytesSent, BytesReceived: w.BytesReceived, Count: w.Count,
	}
	f.Address, _ = netip.ParseAddr(w.Address) // invalid for a lookup
	if w.DurationSeconds != nil {
		f.EndedAt = w.At.Add(time.Duration(*w.DurationSeconds * float64(time.Second)))
	}
	return f
}

func (w wireNetwork) policy() ringfence.NetworkPolicy {
	return ringfence.NetworkPolicy{AllowOut: w.AllowOut, DenyOut: w.DenyOut, AllowInternetAccess: w.AllowInternetAccess, ClosedPorts: w.ClosedPorts}
}
