package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
)

// Open returns OpenNetworks as networks.
func (c *Config) Open() ([]netip.Prefix, error) {
	var list []netip.Prefix
	for _, text := range c.OpenNetworks {
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
			list = append(list, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4In6() {
			return nil, fmt.Errorf("%q is neither an address nor a network such as 10.1.0.0/16", text)
		}
		list = append(list, p.Masked())
	}
	return list, nil
}

// Resolvers returns DNSServers, each with its port.
func (c *Config) Resolvers() ([]string, error) {
	var list []string
	for _, text := range c.DNSServers {
		if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
			list = append(list, net.JoinHostPort(a.String(), "53"))
			continue
		}
		if _, err := netip.ParseAddrPort(text); err != nil {
			return nil, fmt.Errorf("%q is neither an address nor address:port", text)
		}
		list = append(list, text)
	}
	return list, nil
}

// Proxy returns UpstreamProxy; nil when there is none.
func (c *Config) Proxy() (*url.URL, error) {
	if c.UpstreamProxy == "" {
		return nil, nil
	}
	u, err := url.Parse(c.UpstreamProxy)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Port() == "" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, errors.New("it is neither http://host:port nor https://host:port, with or without user:password@") // it may hold a password
	}
	return u, nil
}
