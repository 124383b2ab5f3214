// SPDX-License-Identifier: Apache-2.0

package torchmem

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MaxSidecar caps the JSON beside a snapshot, in bytes.
const MaxSidecar = 1 << 20

// unsaid is a figure of a [Sidecar] or a [FileName] that is not known: 0 is a figure.
const unsaid = -1

// Sidecar is what the JSON beside a snapshot says (docs/spool.md): what the process knew when the snapshot was taken and
// PyTorch's pickle does not hold. Numbers are -1 where the key was missing, texts "".
type Sidecar struct {
	Schema             int
	Reason             string // "oom", "window", "segments", "api"
	Name               string // what the program called it
	DeviceKind, Device string // "cuda", "cuda:0"
	Time               time.Time

	// Of the request that failed, in bytes: what the allocator asked the device for, what the device had free, its memory,
	// and what of it the process may use.
	Requested, Free, Total, Limit int64
	OOMCount, Skipped             int64
	AfterUnwinding                bool

	Rank, Step    int64
	Window        string // "steps4-5"
	Thread        string
	PythonStack   []Frame                     // innermost first
	MemoryStats   map[string]map[string]int64 // device → torch.cuda.memory_stats; "cpu" → host_memory_stats
	Overflowed    bool                        // events were overwritten before the dump
	MaxEntries    int64                       // size of the ring
	AllocConf     string
	TorchVersion  string
	VendorVersion string // torch_npu's
	// Error is why there is no snapshot beside the JSON.
	Error string
}

// ParseSidecar reads the JSON beside a snapshot. A key with a value of the wrong type is left out and named in the error;
// what could be read is returned beside it. Unknown keys are skipped.
func ParseSidecar(text []byte) (*Sidecar, error) {
	s := &Sidecar{
		Requested: unsaid, Free: unsaid, Total: unsaid, Limit: unsaid, OOMCount: unsaid, Skipped: unsaid,
		Rank: unsaid, Step: unsaid, MaxEntries: unsaid,
	}
	if len(text) > MaxSidecar {
		return s, fmt.Errorf("%d bytes, more than the %d allowed", len(text), MaxSidecar)
	}
	keys, err := object(text)
	if err != nil {
		return s, err
	}
	var (
		errs    []error
		stack   []string
		stats   map[string]map[string]json.RawMessage
		history map[string]json.RawMessage
		nanos   int64
	)
	take(keys, "schema", &s.Schema, &errs)
	take(keys, "reason", &s.Reason, &errs)
	take(keys, "name", &s.Name, &errs)
	take(keys, "device_kind", &s.DeviceKind, &errs)
	take(keys, "device", &s.Device, &errs)
	take(keys, "time_unix_nano", &nanos, &errs)
	take(keys, "requested_bytes", &s.Requested, &errs)
	take(keys, "free_bytes", &s.Free, &errs)
	take(keys, "total_bytes", &s.Total, &errs)
	take(keys, "limit_bytes", &s.Limit, &errs)
	take(keys, "oom_count", &s.OOMCount, &errs)
	take(keys, "skipped", &s.Skipped, &errs)
	take(keys, "after_unwinding", &s.AfterUnwinding, &errs)
	take(keys, "rank", &s.Rank, &errs)
	take(keys, "step", &s.Step, &errs)
	take(keys, "window", &s.Window, &errs)
	take(keys, "thread", &s.Thread, &errs)
	take(keys, "python_stack", &stack, &errs)
	take(keys, "memory_stats", &stats, &errs)
	take(keys, "history", &history, &errs)
	take(keys, "allocator_settings", &s.AllocConf, &errs)
	take(keys, "torch_version", &s.TorchVersion, &errs)
	take(keys, "torch_npu_version", &s.VendorVersion, &errs)
	take(keys, "error", &s.Error, &errs)
	take(history, "overflowed", &s.Overflowed, &errs)
	take(history, "max_entries", &s.MaxEntries, &errs)
	if nanos > 0 {
		s.Time = time.Unix(0, nanos).UTC()
	}
	for _, line := range stack[:min(len(stack), maxSidecarFrames)] {
		s.PythonStack = append(s.PythonStack, parseFrame(line))
	}
	for device, figures := range stats {
		for key, raw := range figures {
			// Some of them, such as a ratio, are no whole numbers.
			n, err := strconv.ParseInt(string(raw), 10, 64)
			if err != nil {
				continue
			}
			if s.MemoryStats == nil {
				s.MemoryStats = map[string]map[string]int64{}
			}
			if s.MemoryStats[device] == nil {
				s.MemoryStats[device] = map[string]int64{}
			}
			s.MemoryStats[device][key] = n
		}
	}
	return s, errors.Join(errs...)
}

const maxSidecarFrames = 256

func object(text []byte) (map[string]json.RawMessage, error) {
	var keys map[string]json.RawMessage
	err := json.Unmarshal(text, &keys)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return nil, fmt.Errorf("byte %d: %w", syntax.Offset, err)
	case err != nil:
		return nil, fmt.Errorf("want a JSON object: %w", err)
	}
	return keys, nil
}

// take reads the value of a key, if it is there.
func take[T any](keys map[string]json.RawMessage, key string, to *T, errs *[]error) {
	raw, ok := keys[key]
	if !ok || string(raw) == "null" {
		return
	}
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		*errs = append(*errs, fmt.Errorf("key %q: %w", key, err))
		return
	}
	*to = v
}

// parseFrame reads "qualified-name file:line".
func parseFrame(text string) Frame {
	name, place, _ := strings.Cut(text, " ")
	f := Frame{Name: name, File: place, Python: true}
	if at := strings.LastIndexByte(place, ':'); at >= 0 {
		if line, err := strconv.ParseInt(place[at+1:], 10, 32); err == nil && line >= 0 {
			f.File, f.Line = place[:at], line
		}
	}
	return f
}

// OOM is the error that a sidecar tells of, as far as it knows: the state of the allocator is that of memory_stats. Nil if
// it tells of none.
func (s *Sidecar) OOM() *OOM {
	if s == nil || s.Reason != "oom" {
		return nil
	}
	o := &OOM{
		Device: s.Device, Index: -1, Time: s.Time, Requested: max(s.Requested, 0), Free: max(s.Free, 0),
		Total: max(s.Total, 0), Limit: max(s.Limit, 0), Stack: s.PythonStack,
	}
	if stats := s.MemoryStats[s.Device]; stats != nil {
		o.Live = cmp.Or(stats["requested_bytes.all.current"], stats["allocated_bytes.all.current"])
		o.LiveObjects = stats["active.all.current"]
		o.Reserved = stats["reserved_bytes.all.current"]
		o.Inactive = max(0, o.Reserved-stats["active_bytes.all.current"])
	}
	return o
}

// complete adds to the errors of the trace what the sidecar knows of the last one, or the error itself where the trace has
// none: it was not recorded, or the allocator did not see it (torch_npu's CANN).
func (s *Sidecar) complete(r *reader, devices []*Device) {
	told := s.OOM()
	if told == nil {
		return
	}
	at := slices.IndexFunc(devices, func(d *Device) bool { return d.Name == told.Device })
	if at < 0 && told.Device == "" && len(devices) == 1 {
		at = 0
	}
	if at < 0 {
		return
	}
	d := devices[at]
	if n := len(d.OOMs); n > 0 {
		o := d.OOMs[n-1]
		o.Total, o.Limit = told.Total, told.Limit
		if o.Time.IsZero() {
			o.Time = told.Time
		}
		if !slices.ContainsFunc(o.Stack, func(f Frame) bool { return f.Python }) && len(told.Stack) > 0 {
			// The thread of the error ran no Python that the allocator saw.
			o.Stack = told.Stack
			last := &o.rows[len(o.rows)-1]
			last.stack = r.stackOf(told.Stack)
			d.views["oom"] = o.rows
		}
		o.Unwound = o.Unwound || s.AfterUnwinding && d.Requested < o.Live
		return
	}
	told.Device, told.LiveAtDump, told.Unwound = d.Name, d.Requested, s.AfterUnwinding
	told.Live, told.LiveObjects = d.Requested, int64(d.LiveBlocks)
	told.Reserved, told.Inactive, told.LargestHole = d.Reserved, d.Inactive, d.LargestHole
	live := d.views["live"]
	for _, w := range live[:min(3, len(live))] {
		told.Top = append(told.Top, StackUse{Stack: r.rowFrames(w), Bytes: w.bytes, Objects: w.objects})
	}
	told.rows = append(slices.Clone(live), row{rowKey: rowKey{stack: r.stackOf(told.Stack), note: noteOOM}, objects: 1, bytes: told.Requested})
	d.OOMs, d.OOMCount = []*OOM{told}, 1
	d.views["oom"] = told.rows
}

// stackOf numbers a stack that is not of the pickle.
func (r *reader) stackOf(stack []Frame) uint32 {
	frames := make([]uint32, 0, len(stack))
	for _, f := range stack {
		frames = append(frames, uint32(r.stacks.frame(frame{name: int32(r.m.Intern(f.Name)), file: int32(r.m.Intern(f.File)), line: int32(f.Line)})))
	}
	return r.stacks.fromFrames(frames)
}
