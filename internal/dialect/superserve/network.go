package superserve

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/dialect"
)

// keptRows is more than a sandbox's log keeps.
const keptRows = 2000

var verdicts = map[ringfence.Verdict]string{
	ringfence.VerdictAllowed: "allowed", ringfence.VerdictDenied: "blocked", ringfence.VerdictFailed: "failed",
}

type rowBody struct {
	Kind      string `json:"kind"`
	ID        int64  `json:"id"`
	At        string `json:"ts"`
	Host      string `json:"host,omitempty"`
	Address   string `json:"dst_ip,omitempty"`
	Port      uint16 `json:"dst_port,omitempty"`
	Verdict   string `json:"verdict"`
	Rule      string `json:"match_rule,omitempty"`
	BytesSent int64  `json:"bytes_sent"`
	BytesRecv int64  `json:"bytes_recv"`
}

// networkLog answers with the newest connections first.
func (c *call) networkLog() error {
	query := c.r.URL.Query()
	limit, err := number(query, "limit", 50, 1, 200)
	if err != nil {
		return err
	}
	verdict := query.Get("verdict")
	if verdict != "" && verdict != "allowed" && verdict != "blocked" && verdict != "failed" {
		return invalid("verdict", "there is no verdict %q", cut(verdict)).WithHint("there are allowed, blocked and failed")
	}
	var since time.Time
	if text := query.Get("since"); text != "" {
		if since, err = time.Parse(time.RFC3339, text); err != nil {
			return invalid("since", "since is no time of RFC 3339")
		}
	}
	var beforeTime time.Time
	beforeID := int64(0)
	if text := query.Get("before"); text != "" {
		if beforeID, err = strconv.ParseInt(text, 10, 64); err != nil {
			if beforeTime, err = time.Parse(time.RFC3339, text); err != nil {
				return invalid("before", "before is neither a next_cursor nor a time of RFC 3339")
			}
		}
	}
	sb, err := c.living()
	if err != nil {
		return err
	}
	var flows []ringfence.NetworkFlow
	if sb.State == ringfence.StateRunning { // nobody is woken for it
		if flows, _, err = c.Engine.NetworkLog(c.r.Context(), c.who.Project, sb.ID, ringfence.NetworkLogQuery{Limit: keptRows}); err != nil {
			return err
		}
	}
	slices.SortFunc(flows, func(a, b ringfence.NetworkFlow) int { return int(b.ID - a.ID) })
	out := struct {
		Data       []rowBody `json:"data"`
		NextCursor *string   `json:"next_cursor"`
		HasMore    bool      `json:"has_more"`
	}{Data: []rowBody{}}
	for i := range flows {
		f := &flows[i]
		if f.Protocol != "tcp" || verdict != "" && verdicts[f.Verdict] != verdict || !since.IsZero() && f.At.Before(since) ||
			beforeID > 0 && f.ID >= beforeID || !beforeTime.IsZero() && !f.At.Before(beforeTime) {
			continue
		}
		if len(out.Data) == limit {
			next := strconv.FormatInt(out.Data[limit-1].ID, 10)
			out.NextCursor, out.HasMore = &next, true
			break
		}
		row := rowBody{
			Kind: "connection", ID: f.ID, At: ringfence.FormatTime(f.At), Host: f.Name, Port: f.Port, Verdict: verdicts[f.Verdict], Rule: f.Rule,
			BytesSent: f.BytesSent, BytesRecv: f.BytesReceived,
		}
		if f.Address.IsValid() {
			row.Address = f.Address.String()
		}
		out.Data = append(out.Data, row)
	}
	return dialect.Reply(c.w, http.StatusOK, out)
}
