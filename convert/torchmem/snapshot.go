// SPDX-License-Identifier: Apache-2.0

package torchmem

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/heapwire/heapwire/convert/pickle"
)

// Snapshot is what a memory snapshot says.
type Snapshot struct {
	// Devices that have segments or events, those of host memory last.
	Devices  []*Device
	Settings Settings
	Report   Report
	// Time is that of the last event; where events carry none, Options.Time. Start is that of the first event, zero if
	// events carry none.
	Time, Start time.Time

	opts   Options
	texts  *pickle.Machine
	stacks stackTable
	pools  []pool
}

// Settings are those of the allocator that matter for advice.
type Settings struct {
	Known              bool
	AllocConf          string // PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF
	ExpandableSegments bool
	WindowOverflowed   bool // events were overwritten before the dump; newer versions say so
}

// Device is the memory of one device. Sizes are in bytes.
type Device struct {
	Name  string // "cuda:0", "npu:3", "cpu" for pinned host memory
	Kind  string // "cuda", "npu", "xpu", "pinned"
	Index int

	// The state at the dump.
	Segments, Blocks, LiveBlocks int
	Reserved                     int64      // sum of the segments
	Active                       int64      // sizes of the blocks in use, those that wait for another stream included
	Requested                    int64      // what the program asked for of that
	Inactive                     int64      // sizes of the blocks not in use
	Rounding                     int64      // Active - Requested
	Rounded                      []StackUse // the stacks that lose most of it, three at most
	Pending                      int64      // requested bytes of blocks that were freed and wait for another stream
	LargestHole                  int64      // largest inactive block
	Workspace                    int64      // torch_npu's operator workspaces: neither reserved nor active
	Workspaces                   int

	// The window of events.
	Events                   int64
	Actions                  map[string]int64
	Complete                 bool // the events were read to their end
	AllocBytes, AllocObjects int64
	FreeBytes, FreeObjects   int64
	StaleFrees, StaleBytes   int64 // frees of what was there before the window
	// WindowTruncated tells that the window does not reach back to the first allocation: events were overwritten, or the
	// recording began late.
	WindowTruncated            bool
	Baseline                   int64 // live before the window
	Peak                       int64 // highest live bytes in the window, Baseline if they never rose above it
	PeakIndex                  int64 // event of the peak, -1 for the start of the window
	PeakTime                   time.Time
	SurvivorBytes, SurvivorNum int64 // allocated in the window and live at its end
	SegmentAllocs              int64 // segments added or ranges mapped
	LastGrowth                 *Growth
	OOMCount                   int64
	OOMs                       []*OOM // those that were kept, in order
	Leak                       Leak

	views map[string][]row
}

// Growth is the state just before the last segment was added, for an allocation that nothing free could serve.
type Growth struct {
	Index          int64
	Time           time.Time
	Size           int64 // of the new segment or range
	Reserved, Live int64
	// Unused is Reserved - Live: what the allocator had and the program did not.
	Unused int64
	Stack  []Frame
}

// OOM is an out-of-memory error as the trace has it, with the state just then, rebuilt by replay. Zero: not known.
type OOM struct {
	Device string
	Index  int64 // event
	Time   time.Time
	// Requested is the rounded size of the allocation that failed, Free what the device had free outside the allocator.
	Requested, Free int64
	// Total is the device's memory, Limit what the process may use of it, where it may not use all. Only a sidecar knows.
	Total, Limit int64
	// Live is requested bytes. Reserved and LargestHole are the allocator's; Inactive is Reserved less the live blocks
	// rounded to 512 bytes, as the trace does not have the allocator's own sizes.
	Live, LiveObjects, Reserved, Inactive, LargestHole int64
	Stack                                              []Frame    // of the thread that failed, leaf first
	Top                                                []StackUse // the three stacks that held most
	// Unwound tells that the dump was taken when the error had freed most of this: a profile of the live bytes at the
	// dump shows nothing of it.
	Unwound bool
	// LiveAtDump is for comparison.
	LiveAtDump int64

	rows []row
}

// StackUse is a stack and what it holds.
type StackUse struct {
	Stack          []Frame
	Bytes, Objects int64
}

// Frame is one line of a stack.
type Frame struct {
	Name, File string
	Line       int64
	Python     bool
}

// Read reads a snapshot. What is odd but readable is in the Report; an error means that nothing is usable.
func Read(in io.Reader, opts Options) (*Snapshot, error) {
	opts = opts.withDefaults()
	r := newReader(opts)
	m := pickle.New(in, r, opts.Limits)
	r.begin(m)
	err := m.Run()
	r.report.Bytes = m.Offset()
	switch {
	case errors.Is(err, pickle.ErrTruncated):
		if !r.recognised {
			return nil, fmt.Errorf("%s: no whole segment or event: %w", opts.Name, err)
		}
		r.report.Truncated = true
	case err != nil:
		return nil, fmt.Errorf("%s: %w", opts.Name, err)
	case !r.recognised:
		return nil, fmt.Errorf("%s: %w: no segments and no device_traces; write one with torch.cuda.memory._dump_snapshot", opts.Name, ErrNotSnapshot)
	}
	return r.finish(), nil
}

func (r *reader) finish() *Snapshot {
	s := &Snapshot{Settings: r.settings, opts: r.opts, texts: r.m, stacks: r.stacks, pools: r.pools}
	if !r.report.Truncated {
		for _, t := range r.traces {
			t.whole = true
		}
	}
	r.blocks = r.blocks[:r.pending]
	kind := r.kind()
	type key struct {
		host  bool
		index int
	}
	parts := map[key]*deviceParts{}
	part := func(host bool, index int) *deviceParts {
		k := key{host, index}
		if parts[k] == nil {
			parts[k] = &deviceParts{host: host, index: index}
		}
		return parts[k]
	}
	for i := range r.segments {
		p := part(r.segments[i].host, r.segments[i].index)
		p.segments = append(p.segments, &r.segments[i])
	}
	for _, t := range r.traces[1:] {
		part(t.host, t.index).trace = t
	}
	steps := stepsOf(r)
	var first, last int64
	for _, p := range parts {
		name, deviceKind := fmt.Sprintf("%s:%d", kind, p.index), kind
		if p.host {
			name, deviceKind = "cpu", "pinned"
		}
		d := p.device(r, name, deviceKind, steps)
		s.Devices = append(s.Devices, d)
		if t := p.trace; t != nil && t.lastTime > 0 {
			last = max(last, t.lastTime)
			if first == 0 || t.firstTime < first {
				first = t.firstTime
			}
		}
	}
	slices.SortFunc(s.Devices, func(a, b *Device) int {
		if hostA, hostB := a.Kind == "pinned", b.Kind == "pinned"; hostA != hostB {
			if hostA {
				return 1
			}
			return -1
		}
		return a.Index - b.Index
	})
	if side := r.opts.Sidecar; side != nil {
		side.complete(r, s.Devices)
		s.Settings.WindowOverflowed = s.Settings.WindowOverflowed || side.Overflowed
		s.Settings.AllocConf = cmp.Or(s.Settings.AllocConf, side.AllocConf)
		for _, d := range s.Devices {
			d.WindowTruncated = d.WindowTruncated || side.Overflowed && d.Events > 0
		}
	}
	s.Start, s.Time = micros(first), micros(last)
	if s.Time.IsZero() {
		s.Time = r.opts.Time
	}
	r.report.StacksLeftOut = r.stacks.lost
	r.report.TextsLeftOut = r.m.LeftOut()
	r.report.finish(r.m.Text)
	s.Report = r.report
	s.stacks = r.stacks
	return s
}

// micros is the time of an event, zero for none. Years beyond 2200 are damage, which nanoseconds could not hold.
func micros(us int64) time.Time {
	if us <= 0 || us > 7_258_118_400_000_000 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// kind tells CUDA from NPU where the caller does not: torch_npu's traces have no times, its streams are pointers and never
// 0, and it writes no settings.
func (r *reader) kind() string {
	if r.opts.Kind != "" {
		return r.opts.Kind
	}
	for _, t := range r.traces {
		if t.workspace != nil {
			return "npu"
		}
	}
	for _, f := range r.stacks.frames {
		if file := r.m.Text(int64(f.file)); strings.Contains(file, "torch_npu") {
			return "npu"
		}
	}
	if !r.hasTimes && !r.hasSettings && r.streams > 0 && r.zeroStreams == 0 {
		return "npu"
	}
	return "cuda"
}

// deviceParts is what the file has of a device.
type deviceParts struct {
	host     bool
	index    int
	segments []*segment
	trace    *trace
}

func (p *deviceParts) device(r *reader, name, kind string, steps *stepMarks) *Device {
	d := &Device{Name: name, Kind: kind, Index: p.index, PeakIndex: -1, Complete: true, views: map[string][]row{}}
	t := p.trace
	if t == nil {
		t = &trace{peakIndex: -1, whole: true}
	}
	d.Complete = t.whole
	b := &viewBuilder{r: r, d: d, trace: t, parts: p}
	b.segmentViews()
	b.baseline()
	b.windowViews(steps)
	b.ooms()
	p.checkRanges(&r.report)
	return d
}

// checkRanges counts segments that share addresses.
func (p *deviceParts) checkRanges(report *Report) {
	ordered := slices.Clone(p.segments)
	slices.SortFunc(ordered, func(a, b *segment) int {
		if a.addr < b.addr {
			return -1
		}
		if a.addr > b.addr {
			return 1
		}
		return 0
	})
	for i := 1; i < len(ordered); i++ {
		if a, b := ordered[i-1], ordered[i]; a.size > 0 && b.size > 0 && a.addr+uint64(a.size) > b.addr {
			report.OverlappingRanges++
		}
	}
}
