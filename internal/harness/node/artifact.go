package node

import (
	"fmt"
	"regexp"
	"strings"
)

// labelName is the node label that tells one artifact from all others.
const labelName = "sockwatch/capture"

var (
	labelRule = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	labelLine = regexp.MustCompile(`(?m)^ +` + labelName + `: "([^"\n]*)"$`)
)

// Artifact is a configuration of the worker, about 3 KB of YAML, with a label
// of its own: 1 to 63 letters, digits, dashes, dots and underscores. Two
// artifacts differ in their labels only.
func Artifact(label string) ([]byte, error) {
	if !labelRule.MatchString(label) {
		return nil, fmt.Errorf("artifact: %q is no value for a node label", label)
	}
	var b strings.Builder
	fmt.Fprintf(&b, artifactHead, labelName, label)
	for i := range 16 {
		fmt.Fprintf(&b, artifactHost, i, i, i)
	}
	b.WriteString(artifactTail)
	return []byte(b.String()), nil
}

// LabelOf finds the label of an artifact; empty if it has none.
func LabelOf(artifact []byte) string {
	m := labelLine.FindSubmatch(artifact)
	if m == nil {
		return ""
	}
	return string(m[1])
}

const (
	artifactHead = `version: v1alpha1
debug: false
persist: true
machine:
  type: worker
  nodeLabels:
    node.kubernetes.io/exclude-from-external-load-balancers: ""
    %s: "%s"
  kubelet:
    image: registry.example/kubelet:v1.34.1
    defaultRuntimeSeccompProfileEnabled: true
    disableManifestsDirectory: true
    extraArgs:
      rotate-server-certificates: "true"
      max-pods: "128"
    extraMounts:
      - destination: /var/lib/longhorn
        type: bind
        source: /var/lib/longhorn
        options: [bind, rshared, rw]
  network:
    hostname: worker-1
    nameservers: [198.18.0.1]
    interfaces:
      - interface: eth0
        dhcp: false
        mtu: 1500
    extraHostEntries:
`
	artifactHost = `      - ip: 198.18.1.%d
        aliases: [peer-%d.lab.example, peer-%d]
`
	artifactTail = `  install:
    disk: /dev/vda
    image: registry.example/installer:v1.13.6
    wipe: false
  sysctls:
    fs.inotify.max_user_instances: "8192"
    fs.inotify.max_user_watches: "524288"
    net.core.somaxconn: "65535"
    net.ipv4.neigh.default.gc_thresh1: "4096"
    net.ipv4.neigh.default.gc_thresh2: "8192"
    net.ipv4.neigh.default.gc_thresh3: "16384"
    vm.overcommit_memory: "1"
  registries:
    mirrors:
      docker.io:
        endpoints: [https://mirror.lab.example/docker]
      registry.k8s.io:
        endpoints: [https://mirror.lab.example/k8s]
  features:
    rbac: true
    stableHostname: true
    apidCheckExtKeyUsage: true
    diskQuotaSupport: true
    kubePrism:
      enabled: true
      port: 7445
cluster:
  id: lab
  controlPlane:
    endpoint: https://198.18.0.3:6443
  clusterName: lab
  network:
    dnsDomain: cluster.local
    podSubnets: [10.244.0.0/16]
    serviceSubnets: [10.96.0.0/12]
  discovery:
    enabled: true
    registries:
      kubernetes:
        disabled: true
      service: {}
`
)
