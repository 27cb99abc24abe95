package evidence

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const sysctlDir = "/proc/sys/net/ipv4"

// sysctlNames decide when TCP's timers fire, how often they may, and when a
// connection is given up. Older kernels lack some of them.
var sysctlNames = []string{
	// Timers and how often they may fire.
	"tcp_retries1",
	"tcp_retries2",
	"tcp_syn_retries",
	"tcp_syn_linear_timeouts",
	"tcp_synack_retries",
	"tcp_orphan_retries",
	"tcp_thin_linear_timeouts",
	"tcp_rto_min_us",
	"tcp_rto_max_ms",
	"tcp_keepalive_time",
	"tcp_keepalive_intvl",
	"tcp_keepalive_probes",
	"tcp_user_timeout",
	"tcp_fin_timeout",
	"tcp_pingpong_thresh",

	// What counts as lost, and what is sent again.
	"tcp_early_retrans",
	"tcp_recovery",
	"tcp_frto",
	"tcp_sack",
	"tcp_dsack",
	"tcp_timestamps",
	"tcp_reordering",
	"tcp_max_reordering",
	"tcp_retrans_collapse",
	"tcp_min_rtt_wlen",
	"tcp_congestion_control",
	"tcp_slow_start_after_idle",
	"tcp_no_metrics_save",
	"tcp_backlog_ack_defer",
	"tcp_comp_sack_nr",
	"tcp_comp_sack_delay_ns",

	// What ends or refuses a connection.
	"tcp_abort_on_overflow",
	"tcp_max_orphans",
	"tcp_max_tw_buckets",
	"tcp_tw_reuse",
	"tcp_rfc1337",
	"tcp_syncookies",
	"tcp_max_syn_backlog",
	"tcp_challenge_ack_limit",
	"tcp_migrate_req",
	"tcp_fastopen",

	// What a segment may hold.
	"tcp_mtu_probing",
	"tcp_base_mss",
	"tcp_window_scaling",
	"tcp_shrink_window",
	"tcp_ecn",
	"tcp_plb_enabled",
}

// Sysctls reads the net.ipv4.tcp_* settings that decide timers and aborts in
// the network namespace of the calling thread, which has to be locked to its
// goroutine if it is not the process's own. Keys are without "net.ipv4.".
// What this kernel does not have is left out.
func Sysctls() (map[string]string, error) { return readSysctls(sysctlDir) }

func readSysctls(dir string) (map[string]string, error) {
	m := make(map[string]string, len(sysctlNames))
	for _, name := range sysctlNames {
		b, err := os.ReadFile(filepath.Join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, fmt.Errorf("read sysctl: %w", err)
		}
		// Vectors are separated by tabs.
		m[name] = strings.Join(strings.Fields(string(b)), " ")
	}
	return m, nil
}
