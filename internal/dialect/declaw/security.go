package declaw

import (
	"encoding/json"
	"slices"
	"strings"

	"ringfence.dev/ringfence"
)

// accepted are the parts of a security policy that change nothing here, and whose absence
// protects nobody less: they are about records and listings. network is in force.
var accepted = []string{"audit", "env_security", "network"}

// readSecurity takes a security policy, {"policy_json": "…"} or the policy itself, and
// returns its network part. What would have to be enforced is refused by its name when it
// is enabled or not empty, so that nobody believes in a protection that is not there.
func readSecurity(raw json.RawMessage) (network *networkBody, refused []string, err error) {
	if empty(raw) {
		return nil, nil, nil
	}
	bad := invalid("security", "security has to be an object, or one with policy_json, a string that holds one")
	var parts map[string]json.RawMessage
	if json.Unmarshal(raw, &parts) != nil {
		return nil, nil, bad
	}
	if inner, ok := parts["policy_json"]; ok {
		var text string
		if json.Unmarshal(inner, &text) != nil {
			return nil, nil, bad
		}
		delete(parts, "policy_json")
		var policy map[string]json.RawMessage
		if strings.TrimSpace(text) != "" && json.Unmarshal([]byte(text), &policy) != nil {
			return nil, nil, bad
		}
		for name, part := range policy {
			parts[name] = part
		}
	}
	for name, part := range parts {
		if !slices.Contains(accepted, name) && enabled(part) {
			refused = append(refused, name)
		}
	}
	slices.Sort(refused)
	if part := parts["network"]; !empty(part) {
		network = &networkBody{}
		if json.Unmarshal(part, network) != nil {
			return nil, nil, invalid("security.network", "security.network does not fit")
		}
	}
	return network, refused, nil
}

func empty(raw json.RawMessage) bool {
	s := strings.TrimSpace(string(raw))
	return s == "" || s == "null"
}

// enabled reports whether a part of a policy asks for something: it says so, or it does
// not say and is not empty.
func enabled(raw json.RawMessage) bool {
	var value any
	if json.Unmarshal(raw, &value) != nil {
		return true
	}
	switch v := value.(type) {
	case map[string]any:
		if on, said := v["enabled"]; said {
			return on != false && on != nil
		}
		return len(v) > 0
	case []any:
		return len(v) > 0
	case string:
		return v != ""
	case bool:
		return v
	case nil:
		return false
	}
	return true
}

// refuseFeatures says which features a create asked for in vain.
func refuseFeatures(names []string) error {
	return ringfence.Errorf(ringfence.CodeNotYetSupported, "this server does not have %s yet, and makes no sandbox that seems to have", strings.Join(names, ", ")).
		WithField(names[0]).WithHint("leave it out or disable it; docs/compatibility/declaw.md lists what there is")
}

// networkBody is a network policy on the wire.
type networkBody struct {
	AllowOut           []string `json:"allow_out"`
	DenyOut            []string `json:"deny_out"`
	AllowPublicTraffic *bool    `json:"allow_public_traffic,omitempty"`
	MaskRequestHost    *string  `json:"mask_request_host,omitempty"`
}

// policy is the policy in the engine's words, and what it asks for that there is not.
func (n *networkBody) policy() (p ringfence.NetworkPolicy, refused []string) {
	if n == nil {
		return p, nil
	}
	if n.MaskRequestHost != nil && *n.MaskRequestHost != "" {
		refused = append(refused, "network.mask_request_host")
	}
	closed := n.AllowPublicTraffic != nil && !*n.AllowPublicTraffic
	return ringfence.NetworkPolicy{AllowOut: entries(n.AllowOut), DenyOut: entries(n.DenyOut), ClosedPorts: closed}, refused
}

// everywhere is all addresses and names.
const everywhere = "0.0.0.0/0"

// entries puts the one spelling of everywhere in the place of the others.
func entries(list []string) []string {
	out := slices.Clone(list)
	for i, entry := range out {
		if entry == "*" || entry == "ALL_TRAFFIC" {
			out[i] = everywhere
		}
	}
	return out
}

func networkWire(p ringfence.NetworkPolicy) networkBody {
	open := !p.ClosedPorts
	return networkBody{AllowOut: append([]string{}, p.AllowOut...), DenyOut: append([]string{}, p.DenyOut...), AllowPublicTraffic: &open}
}
