package api

import (
	"net/http"
	"strconv"
	"time"

	"ringfence.dev/ringfence"
)

const (
	networkPage    = 100
	maxNetworkPage = 1000
	maxNetworkWait = 60 // seconds
)

func (c *call) getNetwork() error {
	sb, err := c.Engine.Get(c.r.Context(), c.who.Project, c.r.PathValue("id"))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, networkWire(sb.Network))
}

func (c *call) putNetwork() error {
	var in networkBody
	if err := c.decode(&in); err != nil {
		return err
	}
	sb, err := c.Engine.SetNetwork(c.r.Context(), c.who.Project, c.r.PathValue("id"), ringfence.NetworkPolicy(in))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, networkWire(sb.Network))
}

func networkWire(p ringfence.NetworkPolicy) networkBody {
	return networkBody{list(p.AllowOut), list(p.DenyOut), p.AllowInternetAccess, p.ClosedPorts}
}

type flowBody struct {
	ID              int64             `json:"id"`
	At              string            `json:"at"`
	Name            *string           `json:"name"`
	Address         *string           `json:"address"`
	Port            *uint16           `json:"port"`
	Protocol        string            `json:"protocol"`
	Verdict         ringfence.Verdict `json:"verdict"`
	Reason          string            `json:"reason"`
	Rule            *string           `json:"rule"`
	BytesSent       int64             `json:"bytes_sent"`
	BytesReceived   int64             `json:"bytes_received"`
	DurationSeconds *float64          `json:"duration_seconds"`
	Count           int64             `json:"count"`
}

func flowWire(f *ringfence.NetworkFlow) flowBody {
	w := flowBody{
		ID: f.ID, At: ringfence.FormatTime(f.At), Name: null(f.Name), Port: null(f.Port), Protocol: f.Protocol,
		Verdict: f.Verdict, Reason: f.Reason, Rule: null(f.Rule), BytesSent: f.BytesSent, BytesReceived: f.BytesReceived, Count: f.Count,
	}
	if f.Address.IsValid() {
		w.Address = null(f.Address.String())
	}
	if !f.EndedAt.IsZero() {
		took := max(f.EndedAt.Sub(f.At), 0).Round(time.Microsecond).Seconds()
		w.DurationSeconds = &took
	}
	return w
}

func (c *call) networkLog() error {
	q := ringfence.NetworkLogQuery{Verdict: ringfence.Verdict(c.query.Get("verdict"))}
	if q.Verdict != "" && !q.Verdict.Valid() {
		return invalid("verdict", "there is no verdict %q", short(string(q.Verdict))).WithHint("the verdicts are allowed, denied, failed")
	}
	var err error
	if q.Limit, err = c.number("limit", networkPage, 1, maxNetworkPage); err != nil {
		return err
	}
	wait, err := c.number("wait_seconds", 0, 0, maxNetworkWait)
	if err != nil {
		return err
	}
	q.Wait = time.Duration(wait) * time.Second
	if cursor := c.query.Get("cursor"); cursor != "" {
		if q.After, err = strconv.ParseUint(cursor, 10, 63); err != nil {
			return invalid("cursor", "cursor is not one that this server gave out").WithHint("pass next_cursor of the page before, unchanged")
		}
	}
	rows, next, err := c.Engine.NetworkLog(c.r.Context(), c.who.Project, c.r.PathValue("id"), q)
	if err != nil {
		return err
	}
	out := struct {
		Flows      []flowBody `json:"flows"`
		NextCursor string     `json:"next_cursor"`
	}{Flows: []flowBody{}, NextCursor: strconv.FormatUint(next, 10)}
	for i := range rows {
		out.Flows = append(out.Flows, flowWire(&rows[i]))
	}
	return c.reply(http.StatusOK, out)
}
