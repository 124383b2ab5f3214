// SPDX-License-Identifier: Apache-2.0

package snapgen

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// Forms of snapshots, by their writer. The zero value is 2.10.
const (
	Form20        = "2.0"  // history instead of address and frames in blocks
	FormList      = "list" // segments only, not in a dict
	Form21        = "2.1"
	Form24        = "2.4"
	Form26        = "2.6"
	Form28        = "2.8"
	Form210       = "2.10"
	Form212       = "2.12"
	FormNPU       = "npu"
	FormNPUMaster = "npu-master"
	FormCPP       = "cpp"
)

// Forms are all of them.
var Forms = []string{Form20, FormList, Form21, Form24, Form26, Form28, Form210, Form212, FormNPU, FormNPUMaster, FormCPP}

// Options says what the program did and how the snapshot is written.
type Options struct {
	Form       string
	Protocol   int // 2 to 5; 4
	Seed       uint64
	Steps      int   // 4
	Layers     int   // 4
	Stacks     int   // at least so many distinct stacks
	Depth      int   // frames of a stack; 8
	CPP        bool  // C++ frames around the Python ones
	Leak       int64 // bytes leaked a step
	Devices    int   // lists of device_traces; the program uses the last one. 1, NPU 8
	Capacity   int64 // of the device; 80 GiB
	Expandable bool
	OOM        bool // the last step runs out of memory
	Unwind     bool // and everything it had is freed before the dump
	GiveBack   bool // and the cache is emptied then
	// Window keeps only the last events, as a ring that has overflowed.
	Window int
	// Whole records from the first allocation on, so that nothing is live before the window.
	Whole        bool
	PendingFrees int
	PrivatePools bool
	EmptyCache   bool // after every step
	Workspaces   int  // NPU
	StepMarks    bool // step=N in user_metadata
	Forward      bool // forward_frames
	HostSegments bool // pinned host memory
	TracesFirst  bool
	NoContext    bool // events without frames
	HighAddress  bool // above 2^63
	// ShuffleKeys puts the keys of every dict in another order.
	ShuffleKeys bool
	// Extra puts a key and an action that nobody knows into the file.
	Extra bool
}

func (o Options) withDefaults() Options {
	if o.Form == "" {
		o.Form = Form210
	}
	for _, f := range []struct {
		field *int
		value int
	}{{&o.Protocol, 4}, {&o.Steps, 4}, {&o.Layers, 4}, {&o.Depth, 8}} {
		if *f.field == 0 {
			*f.field = f.value
		}
	}
	if o.Devices == 0 {
		o.Devices = 1
		if o.npu() {
			o.Devices = 8
		}
	}
	if o.Capacity == 0 {
		o.Capacity = 80 << 30
	}
	return o
}

func (o Options) npu() bool { return o.Form == FormNPU || o.Form == FormNPUMaster }

// Frame is a frame of a stack as the snapshot has it.
type Frame struct {
	Name, File string
	Line       int
	dict       *Dict
}

// Snapshot is what a dump would hold.
type Snapshot struct {
	Options  Options
	Frames   []Frame
	Stacks   [][]int // leaf first; stack 0 is empty
	Names    map[string]int
	events   []event
	segments []*seg
	marks    []stepMark
	spaces   []block
	rng      *rand.Rand
	now      int64
	reserved int64
	pending  []*block
	next     uint64
	step     int
	variants map[string][]int
	turn     int
	lists    []*List // frames of contexts that are still shared
	recorded bool
	dumped   int // events before this index are overwritten
}

type event struct {
	action   uint8
	addr     uint64
	size     int64
	stack    int32
	ctx      int32 // number of the captured traceback
	time     int64
	step     int32
	backward int32 // stack of the forward operation, 0 for none
	pool     int32
}

const (
	evAlloc = iota
	evFreeRequested
	evFreeCompleted
	evSegmentAlloc
	evSegmentFree
	evSegmentMap
	evSegmentUnmap
	evOOM
)

var actions = [...]string{"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom"}

type seg struct {
	addr       uint64
	size       int64
	stack, ctx int32
	pool       int32
	expandable bool
	small      bool
	blocks     []*block // by address
}

type block struct {
	addr       uint64
	size, req  int64
	state      uint8
	stack, ctx int32
	seg        *seg
}

const (
	inactive = iota
	active
	pending
)

type stepMark struct {
	stage, name string
	time        int64
}

const (
	granule   = 512
	smallSize = 1 << 20
	smallSeg  = 2 << 20
	largeSeg  = 20 << 20
)

// Generate runs the program.
func Generate(o Options) *Snapshot {
	o = o.withDefaults()
	s := &Snapshot{
		Options: o, Names: map[string]int{}, Stacks: [][]int{nil}, rng: rand.New(rand.NewPCG(o.Seed, 5)),
		now: 1_783_874_600_000_000, next: 0x7f00_0000_0000, variants: map[string][]int{},
	}
	if o.HighAddress {
		s.next = 0xffff_8000_0000_0000
	}
	s.makeStacks()
	for i := range o.Workspaces {
		req := s.rng.Int64N(60<<20) + 1<<16
		s.spaces = append(s.spaces, block{addr: 0x12c0_c000_0000 + uint64(i)<<26, req: req, size: (req + 32 + smallSeg - 1) / smallSeg * smallSeg})
	}
	s.run()
	if o.Window > 0 {
		s.dumped = max(0, len(s.events)-o.Window)
	}
	if o.Form == FormList {
		s.dumped = len(s.events)
	}
	return s
}

func (s *Snapshot) frame(name, file string, line int) int {
	for i, f := range s.Frames {
		if f.Name == name && f.File == file && f.Line == line {
			return i
		}
	}
	s.Frames = append(s.Frames, Frame{Name: name, File: file, Line: line})
	return len(s.Frames) - 1
}

func (s *Snapshot) makeStacks() {
	const torch, src = "/opt/venv/lib/python3.11/site-packages/torch/", "/home/user/train/"
	add := func(name string, frames ...int) {
		if s.Options.CPP {
			native := []int{
				s.frame("torch::unwind::unwind()", "??", 0), s.frame("torch::CapturedTraceback::gather(bool, bool, bool)", "??", 0),
				s.frame("torch::cuda::(anonymous namespace)::gather_with_cpp()", "memory_snapshot.cpp", 0),
				s.frame("at::detail::empty_cuda(c10::ArrayRef<long>)", ":0", 0),
				s.frame("at::_ops::"+name+"::redispatch(at::Tensor const&)", "RegisterCUDA.cpp", 0),
			}
			for _, f := range frames {
				native = append(native, f, s.frame("_PyEval_EvalFrameDefault", "/src/Python/ceval.c", 4198))
			}
			frames = append(native, s.frame("_start", "??", 0))
		}
		s.Names[name] = len(s.Stacks)
		s.Stacks = append(s.Stacks, frames)
	}
	outer := []int{s.frame("train_step", src+"loop.py", 118), s.frame("main", src+"main.py", 212)}
	deep := func(first ...int) []int {
		out := slices.Clone(first)
		for i := len(first) + len(outer); i < s.Options.Depth; i++ {
			out = append(out, s.frame("_call_impl", torch+"nn/modules/module.py", 1000+i))
		}
		return append(out, outer...)
	}
	add("param", deep(s.frame("__init__", torch+"nn/modules/linear.py", 106))...)
	add("data", deep(s.frame("collate", src+"data.py", 43))...)
	add("attention", deep(s.frame("forward", src+"attention.py", 73))...)
	add("mlp", deep(s.frame("forward", src+"mlp.py", 34))...)
	add("logits", deep(s.frame("forward", src+"head.py", 20))...)
	add("leak", deep(s.frame("remember", src+"leak.py", 12))...)
	add("exp_avg", deep(s.frame("_init_group", torch+"optim/adam.py", 174))...)
	add("exp_avg_sq", deep(s.frame("_init_group", torch+"optim/adam.py", 178))...)
	add("update", deep(s.frame("_multi_tensor_adam", torch+"optim/adam.py", 593))...)
	add("free", deep(s.frame("backward", torch+"_tensor.py", 648))...)
	if s.Options.CPP {
		add("backward", s.frame("torch::autograd::Engine::thread_main()", "??", 0))
	}
	base := s.Stacks[s.Names["mlp"]]
	for i := 0; len(s.Stacks) < s.Options.Stacks; i++ {
		v := slices.Clone(base)
		v[len(v)/2] = s.frame("variant", fmt.Sprintf(src+"gen/block_%05d.py", i), 10+i%89)
		s.variants["mlp"] = append(s.variants["mlp"], len(s.Stacks))
		s.Stacks = append(s.Stacks, v)
	}
}

// stack is that of a name; of names with variants each in turn. Names without a stack are those of autograd's threads.
func (s *Snapshot) stack(name string) int32 {
	if v := s.variants[name]; len(v) > 0 {
		s.turn++
		return int32(v[s.turn%len(v)])
	}
	return int32(s.Names[name])
}

func (s *Snapshot) record(action uint8, addr uint64, size int64, stack, ctx int32) {
	s.now += 1 + s.rng.Int64N(24)
	if !s.recorded {
		return
	}
	e := event{action: action, addr: addr, size: size, stack: stack, ctx: ctx, time: s.now, step: int32(s.step)}
	if s.Options.Forward && stack == 0 {
		e.backward = int32(s.Names["mlp"])
		if e.backward == 0 {
			e.backward = 1
		}
	}
	if s.Options.PrivatePools && size >= 8<<20 {
		e.pool = 1
	}
	s.events = append(s.events, e)
}

func (s *Snapshot) newContext() int32 {
	s.lists = append(s.lists, nil)
	return int32(len(s.lists))
}

func (s *Snapshot) malloc(req int64, name string) *block {
	stack, ctx := s.stack(name), s.newContext()
	for len(s.pending) > s.Options.PendingFrees {
		s.complete(s.pending[0], stack, ctx)
		s.pending = s.pending[1:]
	}
	size := max(granule, (req+granule-1)/granule*granule)
	small := size <= smallSize
	pool := int32(0)
	if s.Options.PrivatePools && req >= 8<<20 {
		pool = 1
	}
	b := s.fit(size, small, pool)
	if b == nil {
		if !s.grow(size, small, pool, stack, ctx) {
			s.release(stack, ctx)
			if !s.grow(size, small, pool, stack, ctx) {
				s.record(evOOM, uint64(s.Options.Capacity-s.reserved), size, stack, ctx)
				return nil
			}
		}
		b = s.fit(size, small, pool)
	}
	if rest := b.size - size; small && rest >= granule || rest > smallSize {
		b.seg.split(b, size)
	}
	b.state, b.req, b.stack, b.ctx = active, req, stack, 0
	if s.recorded {
		b.ctx = ctx
	} else {
		b.stack = -1
	}
	s.record(evAlloc, b.addr, req, stack, ctx)
	return b
}

// fit is the smallest inactive block that is large enough.
func (s *Snapshot) fit(size int64, small bool, pool int32) *block {
	var best *block
	for _, g := range s.segments {
		if g.small != small || g.pool != pool {
			continue
		}
		for _, b := range g.blocks {
			if b.state == inactive && b.size >= size && (best == nil || b.size < best.size) {
				best = b
			}
		}
	}
	return best
}

func (g *seg) split(b *block, size int64) {
	i := slices.Index(g.blocks, b)
	g.blocks = slices.Insert(g.blocks, i+1, &block{addr: b.addr + uint64(size), size: b.size - size, seg: g})
	b.size = size
}

func (s *Snapshot) grow(size int64, small bool, pool, stack, ctx int32) bool {
	add := int64(smallSeg)
	if !small {
		add = max(largeSeg, (size+smallSeg-1)/smallSeg*smallSeg)
	}
	if s.reserved+add > s.Options.Capacity {
		return false
	}
	s.reserved += add
	if s.Options.Expandable {
		for _, g := range s.segments {
			if g.small == small && g.pool == pool {
				at := g.addr + uint64(g.size)
				s.record(evSegmentMap, at, add, stack, ctx)
				g.size += add
				if last := g.blocks[len(g.blocks)-1]; last.state == inactive {
					last.size += add
				} else {
					g.blocks = append(g.blocks, &block{addr: at, size: add, seg: g})
				}
				return true
			}
		}
	}
	g := &seg{addr: s.next, size: add, pool: pool, small: small, expandable: s.Options.Expandable, stack: -1}
	if s.recorded {
		g.stack, g.ctx = stack, ctx
	}
	g.blocks = []*block{{addr: g.addr, size: add, seg: g}}
	s.segments = append(s.segments, g)
	if g.expandable {
		s.next += 1 << 40
		s.record(evSegmentMap, g.addr, add, stack, ctx)
	} else {
		s.next += uint64(add) + smallSeg
		s.record(evSegmentAlloc, g.addr, add, stack, ctx)
	}
	return true
}

// release gives back what is empty, after all frees are complete.
func (s *Snapshot) release(stack, ctx int32) {
	for _, b := range s.pending {
		s.complete(b, stack, ctx)
	}
	s.pending = nil
	s.segments = slices.DeleteFunc(s.segments, func(g *seg) bool {
		last := g.blocks[len(g.blocks)-1]
		if g.expandable {
			give := last.size / smallSeg * smallSeg
			if last.state != inactive || give == 0 {
				return false
			}
			s.record(evSegmentUnmap, g.addr+uint64(g.size-give), give, stack, ctx)
			s.reserved -= give
			g.size -= give
			if last.size -= give; last.size == 0 {
				g.blocks = g.blocks[:len(g.blocks)-1]
			}
			return len(g.blocks) == 0
		}
		if len(g.blocks) > 1 || last.state != inactive {
			return false
		}
		s.record(evSegmentFree, g.addr, g.size, stack, ctx)
		s.reserved -= g.size
		return true
	})
}

func (s *Snapshot) free(b *block) {
	stack, ctx := s.stack("free"), s.newContext()
	s.record(evFreeRequested, b.addr, b.req, stack, ctx)
	if s.Options.PendingFrees > 0 && s.rng.IntN(5) == 0 {
		b.state = pending
		s.pending = append(s.pending, b)
		return
	}
	s.complete(b, stack, ctx)
}

func (s *Snapshot) complete(b *block, stack, ctx int32) {
	s.record(evFreeCompleted, b.addr, b.req, stack, ctx)
	b.state, b.req, b.stack, b.ctx = inactive, 0, 0, 0
	g := b.seg
	i := slices.Index(g.blocks, b)
	if i+1 < len(g.blocks) && g.blocks[i+1].state == inactive {
		b.size += g.blocks[i+1].size
		g.blocks = slices.Delete(g.blocks, i+1, i+2)
	}
	if i > 0 && g.blocks[i-1].state == inactive {
		g.blocks[i-1].size += b.size
		g.blocks = slices.Delete(g.blocks, i, i+1)
	}
}

// run is the program.
func (s *Snapshot) run() {
	o := s.Options
	s.recorded = o.Whole
	var params, state, grads []*block
	for range 2 * o.Layers {
		params = append(params, s.malloc(1<<20+s.rng.Int64N(3<<20), "param"))
	}
	s.recorded = true
	mark := func(stage, name string) { s.marks = append(s.marks, stepMark{stage, name, s.now}) }
	for s.step = range o.Steps {
		sequence := 1 + s.rng.Int64N(4)
		data := s.malloc(sequence<<16, "data")
		if o.Leak > 0 {
			s.malloc(o.Leak, "leak")
		}
		var held []*block
		for range o.Layers {
			held = append(held, s.malloc(sequence*(2<<20)+s.rng.Int64N(4096), "attention"), s.malloc(sequence*(4<<20)+1, "mlp"))
			s.free(s.malloc(sequence<<18, "mlp"))
		}
		logits := s.malloc(sequence*(9<<20), "logits")
		mark("START", "Optimizer.zero_grad#Adam.zero_grad")
		for _, g := range grads {
			s.free(g)
		}
		grads = grads[:0]
		mark("END", "Optimizer.zero_grad#Adam.zero_grad")
		s.free(logits)
		for i := len(held) - 1; i >= 0; i-- {
			gradient := s.malloc(held[i].req, "backward")
			s.free(held[i])
			s.free(gradient)
		}
		for _, p := range params {
			grads = append(grads, s.malloc(p.req, "backward"))
		}
		mark("START", "Optimizer.step#Adam.step")
		if state == nil {
			for _, p := range params {
				state = append(state, s.malloc(p.req, "exp_avg"), s.malloc(p.req, "exp_avg_sq"))
			}
		}
		for _, p := range params[:o.Layers] {
			s.free(s.malloc(p.req, "update"))
		}
		mark("END", "Optimizer.step#Adam.step")
		s.free(data)
		if o.EmptyCache {
			s.release(s.stack("free"), s.newContext())
		}
	}
	if !o.OOM {
		return
	}
	s.step = o.Steps
	var held []*block
	for {
		b := s.malloc(o.Capacity/64+s.rng.Int64N(1<<20), "logits")
		if b == nil {
			break
		}
		held = append(held, b)
	}
	if o.Unwind {
		for _, b := range held {
			s.free(b)
		}
		if o.GiveBack {
			s.release(s.stack("free"), s.newContext())
		}
	}
}
