package superserve

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	leafLife      = 90 * 24 * time.Hour
	leafRenewal   = 30 * 24 * time.Hour // before its end
)

// Authority signs certificates for DataHosts and the names below them, and can sign for
// nothing else: who trusts it does not trust it with any other name.
type Authority struct {
	PEM  []byte // its certificate
	cert *x509.Certificate
	key  crypto.Signer

	mu   sync.Mutex
	leaf *tls.Certificate // guarded by mu
}

// OpenAuthority reads the authority that a directory keeps, or makes one. Its key is readable
// by the directory's owner alone.
func OpenAuthority(dir string) (*Authority, error) {
	certFile, keyFile := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.key")
	a := &Authority{}
	var err error
	if a.PEM, err = os.ReadFile(certFile); errors.Is(err, fs.ErrNotExist) {
		return a, a.create(dir, certFile, keyFile)
	}
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err == nil {
		a.cert = pair.Leaf
		if a.key, _ = pair.PrivateKey.(crypto.Signer); a.key == nil || !a.cert.IsCA {
			err = errors.New("it is no authority")
		} else if time.Until(a.cert.NotAfter) < leafLife {
			err = errors.New("it is about to expire")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot use the authority in %s: %w; remove the directory to get another one", dir, err)
	}
	return a, nil
}

func (a *Authority) create(dir, certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := newSerial()
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Ringfence, for programs that use Superserve's SDK"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(authorityLife),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: DataHosts,
		ExcludedIPRanges: []*net.IPNet{
			{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, {IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)},
		},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	if a.cert, err = x509.ParseCertificate(raw); err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	a.key = key
	a.PEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// The certificate is the last: without it another authority is made.
	if err := replaceFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600); err != nil {
		return err
	}
	return replaceFile(certFile, a.PEM, 0o644)
}

func newSerial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
}

// replaceFile writes a file that is there whole or not at all.
func replaceFile(name string, content []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // it was moved, or is of no use
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// TLS is the configuration of a listener for DataHosts.
func (a *Authority) TLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return a.certificate(time.Now())
	}}
}

// certificate returns one that is good for a while, and makes another when it is not.
func (a *Authority) certificate(now time.Time) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leaf != nil && now.Before(a.leaf.Leaf.NotAfter.Add(-leafRenewal)) {
		return a.leaf, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Ringfence"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	for _, host := range DataHosts {
		template.DNSNames = append(template.DNSNames, host, "*."+host)
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, err
	}
	a.leaf = &tls.Certificate{Certificate: [][]byte{raw, a.cert.Raw}, PrivateKey: key, Leaf: leaf}
	return a.leaf, nil
}
