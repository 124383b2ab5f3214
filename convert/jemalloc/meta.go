// SPDX-License-Identifier: Apache-2.0

package jemalloc

import "time"

// Meta is what the shim noted in HEAPWIRE_META (docs/spool.md has each key). A key that the dump does not have leaves
// the zero value; Raw tells the difference.
type Meta struct {
	// Present tells that the dump has the section at all.
	Present bool

	Seq      uint64
	Reason   string
	Trigger  string        // what set the dump off, for a person: "cgroup 91% of 2147483648"
	Time     time.Time     // when the dump was taken
	Interval time.Duration // since the dump before, or since the process started
	// SampleBytes is the mean number of bytes between samples, as the shim sees it.
	SampleBytes  int64
	ProfAccum    bool
	Unbiased     bool
	Step         *int64 // training step; nil when nothing counts them
	Python       string // interpreter version; empty without one
	PythonFrames string // "on", or "off: <reason>"

	// Figures holds every other key with a whole number: sizes in bytes (allocated, rss, cgroup_max, ...) and counts
	// (samples, frames_failed, ...). What the system did not give is not in it.
	Figures map[string]int64
	// Raw is every line as it stands.
	Raw map[string]string
}

// Figure returns a size in bytes or a count by its key, and whether the dump has it.
func (m Meta) Figure(key string) (int64, bool) {
	v, ok := m.Figures[key]
	return v, ok
}

// set takes one line. It returns false for a value that its key cannot have.
func (m *Meta) set(key, value string) bool {
	if m.Raw == nil {
		m.Raw = map[string]string{}
	}
	m.Raw[key] = value
	n, whole := parseInt(value)
	natural := whole && n >= 0
	switch key {
	case "seq":
		m.Seq = uint64(max(n, 0))
		return natural
	case "reason":
		m.Reason = value
	case "trigger":
		m.Trigger = value
	case "time_unix_nano":
		if natural {
			m.Time = time.Unix(0, n).UTC()
		}
		return natural
	case "interval_ns":
		m.Interval = time.Duration(max(n, 0))
		return natural
	case "sample_bytes":
		m.SampleBytes = max(n, 0)
		return natural
	case "prof_accum":
		m.ProfAccum = value == "1"
		return value == "0" || value == "1"
	case "unbiased":
		m.Unbiased = value == "1"
		return value == "0" || value == "1"
	case "step":
		if whole {
			m.Step = &n
		}
		return whole
	case "python":
		m.Python = value
	case "python_frames":
		m.PythonFrames = value
	default:
		if whole {
			if m.Figures == nil {
				m.Figures = map[string]int64{}
			}
			m.Figures[key] = n
		}
	}
	return true
}
