// SPDX-License-Identifier: Apache-2.0

package torchmem

import (
	"strconv"
	"strings"

	"github.com/heapwire/heapwire/convert/pickle"
)

// Tags of the references that stand for what was read.
const (
	tagFrame   = iota // N: frame
	tagStack          // N: stack
	tagTrace          // N: trace, for the list of its events
	tagPool           // N: memory pool
	tagHistory        // N: entry of histories
)

// reader is the pickle's visitor.
type reader struct {
	m      *pickle.Machine
	opts   Options
	report Report

	vals   [keysEnd]pickle.Value // values of the dict being read
	stacks stackTable
	pools  []pool
	poolID map[pool]int64

	segments  []segment
	blocks    []block
	pending   int       // blocks[pending:] belong to the segment that is not complete yet
	histories []history // of the blocks of that segment

	traces      []*trace // 0 takes events that belong to no device
	annotations []annotation
	settings    Settings
	backward    map[uint32]uint32 // forward stack to the stack of its backward operation
	recognised  bool
	hasTimes    bool
	hasSettings bool
	marks       map[int64]int32 // text of user metadata to step
	// The text of the event before, which nearly always is that of the next.
	lastText int64
	lastMark int32
	// Streams of the segments, those that are 0 apart.
	streams, zeroStreams int
}

type pool struct{ a, b int64 }

type history struct {
	addr  uint64
	size  int64
	stack uint32
}

type annotation struct {
	name  int64
	start bool
	time  int64
}

func newReader(opts Options) *reader {
	r := &reader{
		opts: opts, report: Report{Name: opts.Name}, stacks: newStackTable(opts.MaxStacks),
		pools: []pool{{}}, poolID: map[pool]int64{{}: 0}, backward: map[uint32]uint32{}, marks: map[int64]int32{},
		traces: []*trace{{index: -1}}, lastText: -1,
	}
	return r
}

func (r *reader) begin(m *pickle.Machine) {
	r.m = m
	for _, text := range known {
		m.Intern(text)
	}
	r.stacks.rest = r.stacks.fromFrames([]uint32{r.special(StackLeftOut)})
}

// special is the frame of a note.
func (r *reader) special(name string) uint32 {
	return uint32(r.stacks.frame(frame{name: int32(r.m.Intern(name)), file: int32(r.m.Intern(""))}))
}

func bit(key int) uint64 { return 1 << key }

var dropped = pickle.Drop()

// Dict tells by its keys what a dict is. Their order and number differ from version to version.
func (r *reader) Dict(dict pickle.Value, pairs []pickle.Value) (pickle.Value, error) {
	var seen uint64
	unknown := 0
	for i := 0; i+1 < len(pairs); i += 2 {
		k := &pairs[i]
		if k.Kind() == pickle.String && uint64(k.N) < keysEnd {
			r.vals[k.N] = pairs[i+1]
			seen |= 1 << uint64(k.N)
		} else {
			unknown++
		}
	}
	what := inOther
	result := dict
	switch {
	case seen&bit(kAction) != 0:
		what, result = inEvent, dropped
		r.event(seen)
	case seen&bit(kFilename) != 0:
		what = inFrame
		result = r.frame(seen)
	case seen&bit(kTotalSize) != 0:
		what, result = inSegment, dropped
		r.segment(seen)
	case seen&bit(kState) != 0 && seen&bit(kSize) != 0:
		what, result = inBlock, dropped
		r.block(seen)
	case seen&bit(kRealSize) != 0:
		what = inHistory
		result = r.history(seen)
	case seen&bit(kStage) != 0:
		what, result = inAnnotation, dropped
		r.annotation(seen)
	case seen&(bit(kSegments)|bit(kDeviceTraces)|bit(kHostSegments)|bit(kHostTraces)) != 0 && r.m.Parent() == nil:
		what = inTop
		r.recognised = true
		for _, t := range r.traces {
			t.whole = true
		}
	case seen&(bit(kAllocConfCUDA)|bit(kAllocConf)|bit(kTraceOverflowed)|bit(kExpandableSegments)) != 0:
		r.setting(seen)
	}
	if unknown > 0 && what != inOther {
		r.unknownKeys(what, pairs)
	}
	return result, nil
}

func (r *reader) unknownKeys(what place, pairs []pickle.Value) {
	for i := 0; i+1 < len(pairs); i += 2 {
		k := pairs[i]
		switch {
		case k.Kind() == pickle.String && k.N >= keysEnd:
			r.report.unknown(what, k.N)
		case k.Kind() != pickle.String:
			r.report.OddKeys++
		}
	}
}

// List turns lists of frames into stacks.
func (r *reader) List(list pickle.Value, items []pickle.Value) (pickle.Value, error) {
	first := &items[0]
	switch {
	case list.Is(tagStack):
		// A stack of more than 1,000 frames comes in parts.
		if more, ok := r.stacks.fromItems(items); ok {
			whole := append(append([]uint32(nil), r.stacks.get(uint32(list.N))...), r.stacks.get(more)...)
			if len(whole) > maxDepth {
				r.report.DeepStacks++
				whole = whole[:maxDepth]
			}
			list.N = int64(r.stacks.fromFrames(whole))
		}
		return list, nil
	case list.Kind() == pickle.Ref:
		return list, nil
	case first.Is(tagFrame):
		if len(items) > maxDepth {
			r.report.DeepStacks++
			items = items[:maxDepth]
		}
		if stack, ok := r.stacks.fromItems(items); ok {
			return pickle.Reference(tagStack, int64(stack)), nil
		}
		r.report.OddValues++
	case first.Is(tagHistory):
		return *first, nil
	case first.Kind() == pickle.String:
		return pickle.Reference(tagStack, int64(r.forward(items))), nil
	}
	for i := range items {
		if items[i].Is(tagTrace) {
			r.traces[items[i].N].whole = true
		}
	}
	return list, nil
}

// maxDepth is the longest stack that is kept whole; a longer one loses its outermost frames.
const maxDepth = 1 << 14

// Tuple keeps the ids of memory pools.
func (r *reader) Tuple(items []pickle.Value) (pickle.Value, error) {
	if len(items) != 2 || items[0].Kind() != pickle.Int || items[1].Kind() != pickle.Int {
		return pickle.Drop(), nil
	}
	v := pickle.Reference(tagPool, 0)
	if p := (pool{items[0].N, items[1].N}); p != (pool{}) {
		id, ok := r.poolID[p]
		if !ok && len(r.pools) < maxPools {
			id = int64(len(r.pools))
			r.pools = append(r.pools, p)
			r.poolID[p] = id
		}
		v.N = id
	}
	return v, nil
}

const maxPools = 1 << 16

func (r *reader) frame(seen uint64) pickle.Value {
	f := frame{file: r.text(kFilename, seen), name: r.text(kName, seen)}
	if seen&bit(kLine) != 0 {
		if v := r.vals[kLine]; v.Kind() == pickle.Int && v.N > 0 && v.N <= 1<<31-1 {
			f.line = int32(v.N)
		}
	}
	return pickle.Reference(tagFrame, int64(r.stacks.frame(f)))
}

func (r *reader) text(key int, seen uint64) int32 {
	if seen&bit(key) != 0 && r.vals[key].Kind() == pickle.String {
		return int32(r.vals[key].N)
	}
	return int32(r.m.Intern(""))
}

// forward numbers the stack of a list of formatted lines, which are outermost first.
func (r *reader) forward(items []pickle.Value) uint32 {
	frames := make([]uint32, 0, min(len(items), maxDepth))
	for i := len(items) - 1; i >= 0 && len(frames) < maxDepth; i-- {
		if items[i].Kind() != pickle.String {
			continue
		}
		name, file, line := parseTraceback(r.m.Text(items[i].N))
		frames = append(frames, uint32(r.stacks.frame(frame{name: int32(r.m.Intern(name)), file: int32(r.m.Intern(file)), line: line})))
	}
	return r.stacks.fromFrames(frames)
}

// backwardOf is the stack of an operation of autograd, whose own thread has no Python frames: that of its forward
// operation below a note.
func (r *reader) backwardOf(forward uint32) uint32 {
	s, ok := r.backward[forward]
	if !ok {
		frames := append([]uint32{r.special(BackwardOf)}, r.stacks.get(forward)...)
		s = r.stacks.fromFrames(frames)
		r.backward[forward] = s
	}
	return s
}

func (r *reader) int(key int, seen uint64) int64 {
	if seen&bit(key) == 0 {
		return 0
	}
	v := &r.vals[key]
	if v.Kind() == pickle.Int {
		return v.N
	}
	switch v.Kind() {
	case pickle.Bool:
		return v.N
	case pickle.Float:
		return int64(min(max(v.Float(), -maxBytes), 1<<62)) // NaN gives some number, which is as good as any
	case pickle.None:
		return 0
	}
	r.report.OddValues++
	return 0
}

func (r *reader) stack(seen uint64) uint32 {
	if seen&bit(kFrames) != 0 {
		if v := &r.vals[kFrames]; v.Is(tagStack) {
			return uint32(v.N)
		}
	}
	return 0
}

func (r *reader) event(seen uint64) {
	t := r.trace()
	action := &r.vals[kAction]
	if action.Kind() != pickle.String || action.N < keysEnd || action.N >= actionsEnd {
		t.events++
		if action.Kind() == pickle.String {
			r.report.unknown(inActions, action.N)
		} else {
			r.report.OddValues++
		}
		return
	}
	e := entry{size: r.int(kSize, seen), stack: r.stack(seen), mark: -1}
	if seen&bit(kAddr) != 0 {
		e.addr = uint64(r.int(kAddr, seen))
	} else if seen&bit(kDeviceFree) != 0 {
		e.addr = uint64(r.int(kDeviceFree, seen))
	}
	if seen&bit(kTimeUS) != 0 {
		e.time = max(0, r.int(kTimeUS, seen))
		r.hasTimes = true
	}
	if e.stack == 0 && seen&bit(kForwardFrames) != 0 {
		if v := &r.vals[kForwardFrames]; v.Is(tagStack) && v.N != 0 {
			e.stack = r.backwardOf(uint32(v.N))
		}
	}
	if seen&bit(kUserMetadata) != 0 && r.vals[kUserMetadata].Kind() == pickle.String {
		e.mark = r.mark(r.vals[kUserMetadata].N)
	}
	if t.index < 0 {
		r.report.StrayEvents++
		return
	}
	t.apply(action.N, &e, &r.opts)
}

// mark is the step that a text of user metadata names as step=N, -1 for none. torch.cuda.memory._set_memory_metadata sets
// it for all events of a thread.
func (r *reader) mark(text int64) int32 {
	if text == r.lastText {
		return r.lastMark
	}
	step, ok := r.marks[text]
	if ok {
		r.lastText, r.lastMark = text, step
		return step
	}
	step = -1
	if _, after, found := strings.Cut(r.m.Text(text), "step="); found {
		digits := 0
		for digits < len(after) && after[digits] >= '0' && after[digits] <= '9' {
			digits++
		}
		if n, err := strconv.ParseInt(after[:digits], 10, 32); err == nil {
			step = int32(n)
		}
	}
	r.marks[text] = step
	return step
}

// trace finds the device that an event belongs to by the list it stands in.
func (r *reader) trace() *trace {
	list := r.m.Parent()
	if list == nil {
		return r.traces[0]
	}
	if list.Is(tagTrace) {
		return r.traces[list.N]
	}
	if list.Kind() != pickle.List {
		return r.traces[0]
	}
	n := r.newTrace(r.m.Path())
	list.Become(tagTrace, int64(n))
	return r.traces[n]
}

func (r *reader) newTrace(path []pickle.Step) int {
	if len(path) < 2 || path[0].Key != kDeviceTraces && path[0].Key != kHostTraces {
		return 0
	}
	host := path[0].Key == kHostTraces
	index := 0
	if len(path) > 2 {
		index = int(min(path[1].Index, maxDevices))
	}
	if host {
		index = 0
	}
	if index >= maxDevices {
		return 0
	}
	for _, t := range r.traces[1:] {
		t.whole = true
	}
	for i, t := range r.traces {
		if t.host == host && t.index == index {
			return i
		}
	}
	r.recognised = true
	r.traces = append(r.traces, &trace{host: host, index: index, peakIndex: -1})
	return len(r.traces) - 1
}

// maxDevices is more than any process has.
const maxDevices = 1024

func (r *reader) history(seen uint64) pickle.Value {
	r.histories = append(r.histories, history{addr: uint64(r.int(kAddr, seen)), size: r.int(kRealSize, seen), stack: r.stack(seen)})
	return pickle.Reference(tagHistory, int64(len(r.histories)-1))
}

func (r *reader) annotation(seen uint64) {
	if seen&bit(kName) == 0 || r.vals[kName].Kind() != pickle.String || r.vals[kStage].Kind() != pickle.String {
		r.report.OddValues++
		return
	}
	name := r.vals[kName].N
	if !isStepMark(r.m.Text(name)) {
		return
	}
	if len(r.annotations) < maxAnnotations {
		r.annotations = append(r.annotations, annotation{name: name, start: r.vals[kStage].N == sStart, time: r.int(kTimeUS, seen)})
	}
}

const maxAnnotations = 1 << 20

func (r *reader) setting(seen uint64) {
	r.hasSettings = true
	for _, k := range []int{kAllocConfCUDA, kAllocConf} {
		if seen&bit(k) != 0 && r.vals[k].Kind() == pickle.String {
			r.settings.AllocConf = r.m.Text(r.vals[k].N)
		}
	}
	if seen&bit(kExpandableSegments) != 0 && r.vals[kExpandableSegments].Kind() == pickle.Bool {
		r.settings.ExpandableSegments = r.vals[kExpandableSegments].N != 0
		r.settings.Known = true
	}
	if seen&bit(kTraceOverflowed) != 0 && r.vals[kTraceOverflowed].Kind() == pickle.Bool && r.vals[kTraceOverflowed].N != 0 {
		r.settings.WindowOverflowed = true
	}
}
