package evidence

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"
)

// TimeNamespaceOffset is what CLOCK_MONOTONIC of this process is ahead of the
// kernel's, which stamps the events; 0 outside of time namespaces
// (time_namespaces(7), Linux 5.6).
func TimeNamespaceOffset() (time.Duration, error) {
	const path = "/proc/self/timens_offsets"
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) != 3 || f[0] != "monotonic" {
			continue
		}
		s, err1 := strconv.ParseInt(f[1], 10, 64)
		ns, err2 := strconv.ParseInt(f[2], 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return 0, fmt.Errorf("read %s: %w", path, err)
		}
		return time.Duration(s)*time.Second + time.Duration(ns), nil
	}
	return 0, nil
}
