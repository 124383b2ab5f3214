// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Cgroup is the memory cgroup of a living process, as a path below the place where cgroups are mounted; "" if it cannot
// be told. After the process's end nobody knows it any more.
func (p *Process) Cgroup() string {
	id, _ := p.Identity()
	m := p.spool.machine
	if m.state(id.Host, id.PID, id.StartTicks, id.BootID, id.PIDNamespace) != Alive {
		return ""
	}
	text, err := os.ReadFile(filepath.Join(m.proc, strconv.Itoa(id.PID), "cgroup"))
	if err != nil {
		return ""
	}
	path := cgroupPath(string(text))
	if path == "" || m.state(id.Host, id.PID, id.StartTicks, id.BootID, id.PIDNamespace) != Alive {
		return ""
	}
	return path
}

// cgroupPath reads /proc/<pid>/cgroup (cgroups(7)): "0::/path" of version 2 beats "4:memory:/path" of version 1.
func cgroupPath(text string) string {
	var v1 string
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch {
		case parts[0] == "0" && parts[1] == "":
			return filepath.Clean("/" + parts[2])
		case strings.Contains(","+parts[1]+",", ",memory,"):
			v1 = "/memory" + filepath.Clean("/"+parts[2])
		}
	}
	return v1
}

// OOMKills counts the processes of a cgroup, and of those below it, that the kernel has killed for want of memory:
// oom_kill in memory.events (Documentation/admin-guide/cgroup-v2.rst), in version 1 in memory.oom_control.
func (s *Spool) OOMKills(cgroup string) (int64, error) {
	if cgroup == "" {
		return 0, errors.New("reading OOM kills: the cgroup is not known")
	}
	var errs []error
	for _, file := range []string{"memory.events", "memory.oom_control"} {
		text, err := os.ReadFile(filepath.Join(s.machine.cgroups, filepath.Clean("/"+cgroup), file))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for line := range bytes.Lines(text) {
			if key, value, _ := strings.Cut(strings.TrimSpace(string(line)), " "); key == "oom_kill" {
				return strconv.ParseInt(value, 10, 64)
			}
		}
		errs = append(errs, fmt.Errorf("no oom_kill in %s", file))
	}
	return 0, fmt.Errorf("reading OOM kills of %s: %w", cgroup, errors.Join(errs...))
}
