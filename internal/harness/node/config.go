package node

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

// Port of apid on every node.
const Port = 50000

// Files of a node, in a directory of its own.
const (
	ConfigFile  = "node.json"
	CAFile      = "ca.crt"
	CertFile    = "node.crt"
	KeyFile     = "node.key"
	MachineFile = "machine.yaml" // the machine's configuration, once one was applied
)

// Config is what a node knows of its lab.
type Config struct {
	Role         string     `json:"role"`
	Controlplane netip.Addr `json:"controlplane"`
	Worker       netip.Addr `json:"worker"`

	dir string
}

// ReadConfig reads the configuration of the node whose files are in dir.
func ReadConfig(dir string) (Config, error) {
	c := Config{dir: dir}
	b, err := os.ReadFile(filepath.Join(dir, ConfigFile))
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("read %s: %w", filepath.Join(dir, ConfigFile), err)
	}
	return c, nil
}

// tls gives the two halves of mutual authentication: what the node shows when
// it is called, and when it calls.
func (c Config) tls() (server, client *tls.Config, err error) {
	ca, err := os.ReadFile(filepath.Join(c.dir, CAFile))
	if err != nil {
		return nil, nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, nil, errors.New("no certificate in " + CAFile)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(c.dir, CertFile), filepath.Join(c.dir, KeyFile))
	if err != nil {
		return nil, nil, err
	}
	server = &tls.Config{
		Certificates: []tls.Certificate{pair},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    pool,
		MinVersion:   tls.VersionTLS13,
	}
	client = &tls.Config{
		Certificates: []tls.Certificate{pair},
		RootCAs:      pool,
		MinVersion:   tls.VersionTLS13,
	}
	return server, client, nil
}
