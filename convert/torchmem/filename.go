// SPDX-License-Identifier: Apache-2.0

package torchmem

import (
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// FileName is what the path of a snapshot tells of it. Numbers are -1 where it tells none.
type FileName struct {
	Kind      string // "npu" where only torch_npu writes such a name
	Rank, PID int64
	// Step is the step of the dump, the last one of Window where it is of several: "steps4-5".
	Step   int64
	Window string
	Time   time.Time // in local time, without a zone of its own
	// Reason is "oom" where the writer dumps on an error only, "window" for steps. The content says whether there was one:
	// a name made by hand proves nothing.
	Reason string
}

// Names that others give their snapshots:
//
//	step4/torch_memory_rank0_pid4242.pickle           verl, one step
//	steps4-5/torch_memory_rank0_pid4242.pickle        verl, several steps
//	oom_20260908-101112-123456/torch_memory_oom_rank0_pid4242.pickle   verl, an error
//	oom_snapshot_4242_20260908101112.pickle           torch_npu, OOM_SNAPSHOT_ENABLE
var (
	rankAndPID  = regexp.MustCompile(`_rank([0-9]{1,9})_pid([0-9]{1,9})$`)
	npuName     = regexp.MustCompile(`^oom_snapshot_([0-9]{1,9})_([0-9]{14})$`)
	stepFolder  = regexp.MustCompile(`^step([0-9]{1,15})$`)
	stepsFolder = regexp.MustCompile(`^steps([0-9]{1,15})-([0-9]{1,15})$`)
	oomFolder   = regexp.MustCompile(`^oom_([0-9]{8}-[0-9]{6})-([0-9]{6})$`)
)

// NameGroups are the named groups that [FileName.Match] knows.
var NameGroups = []string{"rank", "pid", "step"}

// Match adds what the groups of a pattern find in a snapshot's path.
func (f FileName) Match(path string, pattern *regexp.Regexp) FileName {
	m := pattern.FindStringSubmatch(path)
	for i, group := range pattern.SubexpNames() {
		if m == nil || m[i] == "" {
			continue
		}
		n, err := strconv.ParseInt(m[i], 10, 64)
		if err != nil || n < 0 {
			continue
		}
		switch group {
		case "rank":
			f.Rank = n
		case "pid":
			f.PID = n
		case "step":
			f.Step = n
		}
	}
	return f
}

// ParseFileName reads what a snapshot's name and that of its folder tell.
func ParseFileName(path string) FileName {
	f := FileName{Rank: unsaid, PID: unsaid, Step: unsaid}
	dir, name := filepath.Split(filepath.Clean(path))
	name = Stem(name)
	number := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return unsaid
		}
		return n
	}
	stamp := func(layout, text string) {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			f.Time = t
		}
	}
	if m := npuName.FindStringSubmatch(name); m != nil {
		f.Kind, f.Reason, f.PID = "npu", "oom", number(m[1])
		stamp("20060102150405", m[2])
	}
	if m := rankAndPID.FindStringSubmatch(name); m != nil {
		f.Rank, f.PID = number(m[1]), number(m[2])
		if strings.HasSuffix(name[:len(name)-len(m[0])], "_oom") {
			f.Reason = "oom"
		}
	}
	folder := filepath.Base(dir)
	switch {
	case stepFolder.MatchString(folder):
		f.Reason, f.Step = "window", number(stepFolder.FindStringSubmatch(folder)[1])
	case stepsFolder.MatchString(folder):
		f.Reason, f.Window, f.Step = "window", folder, number(stepsFolder.FindStringSubmatch(folder)[2])
	case oomFolder.MatchString(folder):
		m := oomFolder.FindStringSubmatch(folder)
		f.Reason = "oom"
		stamp("20060102-150405.000000", m[1]+"."+m[2])
	}
	return f
}

// Stem is a file's name without what tells its format.
func Stem(name string) string {
	for _, suffix := range []string{".gz", ".zst", ".pickle", ".pkl"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return name
}

// IsFileName says whether a file is called like a snapshot: .pickle or .pkl, with compressed also .gz and .zst of these.
func IsFileName(name string, compressed bool) bool {
	if compressed {
		name = strings.TrimSuffix(strings.TrimSuffix(name, ".zst"), ".gz")
	}
	return strings.HasSuffix(name, ".pickle") || strings.HasSuffix(name, ".pkl")
}

// SidecarName is the name of the JSON beside a snapshot.
func SidecarName(path string) string {
	dir, name := filepath.Split(path)
	return dir + Stem(name) + ".json"
}
