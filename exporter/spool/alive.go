// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// State says what is known about a process from outside.
type State int

const (
	// Unknown: the process belongs to another host (or to a container with a host name of its own), whose process table
	// cannot be read from here.
	Unknown State = iota
	Alive
	Dead
)

func (s State) String() string {
	switch s {
	case Alive:
		return "alive"
	case Dead:
		return "dead"
	default:
		return "unknown"
	}
}

// machine is what liveness is judged by; tests replace it.
type machine struct {
	proc    string // where procfs is mounted
	cgroups string // where cgroups are
	host    string
}

func thisMachine() machine {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	return machine{proc: "/proc", cgroups: "/sys/fs/cgroup", host: host}
}

func (m machine) bootID() string {
	b, err := os.ReadFile(filepath.Join(m.proc, "sys/kernel/random/boot_id"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (m machine) pidNamespace() string {
	target, err := os.Readlink(filepath.Join(m.proc, "self/ns/pid"))
	if err != nil {
		return ""
	}
	return target
}

// state judges a process by pid, start ticks and boot id: a pid that was used again has another start. A process of
// another pid namespace, as in a container on the host's network, has another pid here.
func (m machine) state(host string, pid int, start uint64, boot, namespace string) State {
	if m.host == "" || folderHost(host) != folderHost(m.host) {
		return Unknown
	}
	if here := m.bootID(); boot != "" && here != "" && boot != here {
		return Dead
	}
	if here := m.pidNamespace(); namespace != "" && here != "" && namespace != here {
		return Unknown
	}
	st, err := m.stat(pid)
	switch {
	case os.IsNotExist(err):
		return Dead
	case err != nil:
		return Unknown
	case st.start != start:
		return Dead
	// A thread group whose leader has ended shows its leader's state; the other threads, the clock among them, live on.
	case (st.state == 'Z' && st.threads <= 1) || st.state == 'X':
		return Dead
	default:
		return Alive
	}
}

type procStat struct {
	state   byte
	threads int
	start   uint64
}

// stat reads /proc/<pid>/stat (proc_pid_stat(5)): the command in parentheses may hold blanks and parentheses.
func (m machine) stat(pid int) (procStat, error) {
	path := filepath.Join(m.proc, strconv.Itoa(pid), "stat")
	b, err := os.ReadFile(path)
	if err != nil {
		// A process that ends while its file is open gives ESRCH, which is no file error.
		if _, gone := os.Stat(filepath.Dir(path)); os.IsNotExist(gone) {
			return procStat{}, os.ErrNotExist
		}
		return procStat{}, err
	}
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return procStat{}, fmt.Errorf("reading %s: want a command in parentheses", path)
	}
	fields := strings.Fields(string(b[i+1:]))
	// Field 3 of the page is fields[0].
	if len(fields) < 20 || len(fields[0]) != 1 {
		return procStat{}, fmt.Errorf("reading %s: want at least 22 fields", path)
	}
	st := procStat{state: fields[0][0]}
	if st.threads, err = strconv.Atoi(fields[17]); err != nil {
		return procStat{}, fmt.Errorf("reading %s: field 20: %w", path, err)
	}
	if st.start, err = strconv.ParseUint(fields[19], 10, 64); err != nil {
		return procStat{}, fmt.Errorf("reading %s: field 22: %w", path, err)
	}
	return st, nil
}

// StartTicks gives what tells a process of this machine from others of the same pid: field 22 of /proc/<pid>/stat.
func StartTicks(pid int) (uint64, error) {
	st, err := thisMachine().stat(pid)
	return st.start, err
}
