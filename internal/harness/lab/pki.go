package lab

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"time"

	"github.com/sockwatch/sockwatch/internal/harness/node"
)

// validity of a lab's certificates, which are as old as the lab.
const validity = 30 * 24 * time.Hour

// authority signs what the nodes of one lab show each other. Its key is never
// written down.
type authority struct {
	key  ed25519.PrivateKey
	cert *x509.Certificate
	pem  []byte
}

func newAuthority(lab string) (*authority, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	t := template("sockwatch lab " + lab)
	t.IsCA, t.BasicConstraintsValid = true, true
	t.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, public, private)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	return &authority{private, cert, encodePEM("CERTIFICATE", der)}, nil
}

func template(name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // cannot fail
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(validity),
	}
}

// issue makes a certificate for a node, which serves at addr and on loopback,
// and the key to it.
func (a *authority) issue(name string, addr netip.Addr) (cert, key []byte, err error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	t := template(name)
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	t.IPAddresses = []net.IP{addr.AsSlice(), loopback.AsSlice()}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, public, a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("make a certificate: %w", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	return encodePEM("CERTIFICATE", der), encodePEM("PRIVATE KEY", pkcs8), nil
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// nodeFiles are what the programs of each node read, by role and name.
func nodeFiles(l *Lab) (map[string]map[string][]byte, error) {
	ca, err := newAuthority(l.Name)
	if err != nil {
		return nil, err
	}
	all := make(map[string]map[string][]byte)
	for _, n := range l.nodes {
		cert, key, err := ca.issue(n.Name, n.Addr)
		if err != nil {
			return nil, err
		}
		c := node.Config{Role: n.Role}
		for _, other := range l.nodes {
			switch other.Role {
			case Controlplane:
				c.Controlplane = other.Addr
			case Worker:
				c.Worker = other.Addr
			}
		}
		config, err := json.MarshalIndent(c, "", "  ")
		if err != nil {
			return nil, err
		}
		all[n.Role] = map[string][]byte{
			node.CAFile: ca.pem, node.CertFile: cert, node.KeyFile: key, node.ConfigFile: append(config, '\n'),
		}
	}
	return all, nil
}
