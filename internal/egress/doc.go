// Package egress decides what may leave a sandbox. It is pure: it parses policies,
// decides flows and names, and reads the names that TLS and HTTP clients announce;
// it opens no socket and knows no sandbox.
//
// The order of a decision about an address:
//
//  1. Closed networks (closedNetworks, the host's own addresses, and addresses that
//     embed such) are denied, unless the operator opened them.
//  2. Port 0 is denied; TCP port 25 unless an allow entry names that port.
//  3. An allow entry that matches wins over every deny entry.
//  4. A deny entry that matches denies.
//  5. What is left is allowed when the policy has no allow entries and does not turn
//     the internet off, and denied otherwise.
//
// Entries with names match a flow by the names that the gateway itself resolved to
// its address. Such a flow has to prove its name before its first byte is
// forwarded: see Guard.
package egress
