package measure

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"time"

	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/harness/durable"
	"github.com/sockwatch/sockwatch/internal/harness/plan"
)

// Record is run.json: what a reader needs to judge the results, and a resumed
// run to go on.
type Record struct {
	ID       string    `json:"id"` // in the artifacts' labels
	Plan     string    `json:"plan"`
	Started  time.Time `json:"started"`
	Version  string    `json:"version"`
	Commit   string    `json:"commit"`
	Go       string    `json:"go"`
	Command  []string  `json:"command"`
	Backend  string    `json:"backend"`
	Parallel int       `json:"parallel"` // 0: chosen by the machine

	Seed     uint64 `json:"seed"`               // of the order
	Only     string `json:"only,omitempty"`     // cells selected, a regular expression
	Captures int    `json:"captures,omitempty"` // of each cell; absent: as the plan says

	Kernel   string            `json:"kernel"`
	Machine  string            `json:"machine"`
	HZ       uint32            `json:"hz"`
	BootID   string            `json:"boot_id"`
	BTF      string            `json:"btf_sha256"`
	Lockdown string            `json:"lockdown"`
	CPUs     int               `json:"cpus"`
	Sysctls  map[string]string `json:"sysctls"` // of the host; those of each node are in its evidence
}

func (r *run) writeRecord() error {
	host, err := evidence.Host()
	if err != nil {
		return err
	}
	sysctls, err := evidence.Sysctls()
	if err != nil {
		return err
	}
	rec := Record{
		ID: r.id, Plan: r.Plan.Name, Started: time.Now().UTC(), Version: r.Version, Commit: r.Commit, Go: runtime.Version(),
		Command: r.Command, Backend: r.Backend, Parallel: r.Parallel, Seed: r.Selection.Seed, Captures: r.Selection.Captures,
		Kernel: host.Kernel, Machine: host.Machine, HZ: host.HZ, BootID: host.BootID, BTF: host.BTF, Lockdown: host.Lockdown,
		CPUs: runtime.NumCPU(), Sysctls: sysctls,
	}
	if r.Selection.Only != nil {
		rec.Only = r.Selection.Only.String()
	}
	b, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	return durable.WriteFile(r.path(recordName), append(b, '\n'))
}

func readRecord(path string) (Record, error) {
	var rec Record
	b, err := os.ReadFile(path)
	if err != nil {
		return rec, err
	}
	if err := json.Unmarshal(b, &rec); err != nil {
		return rec, fmt.Errorf("%s: %w", recordName, err)
	}
	return rec, nil
}

func (rec *Record) selection() (plan.Selection, error) {
	s := plan.Selection{Seed: rec.Seed, Captures: rec.Captures}
	if rec.Only != "" {
		only, err := regexp.Compile(rec.Only)
		if err != nil {
			return s, err
		}
		s.Only = only
	}
	return s, nil
}
