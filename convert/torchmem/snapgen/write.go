// SPDX-License-Identifier: Apache-2.0

package snapgen

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
)

// Write writes the snapshot as its form's writer would.
func (s *Snapshot) Write(w io.Writer) error {
	b := &writer{Snapshot: s, strs: map[string]*Str{}, items: map[int32][]any{}, keys: rand.New(rand.NewPCG(s.Options.Seed, 6))}
	for i := range s.Frames {
		s.Frames[i].dict = nil
	}
	s.lists = make([]*List, len(s.lists))
	b.empty = &List{shared: true}
	if err := writePickle(w, b.top(), s.Options.Protocol, s.Options.Form == FormCPP); err != nil {
		return fmt.Errorf("writing a snapshot: %w", err)
	}
	return nil
}

type writer struct {
	*Snapshot
	strs  map[string]*Str
	empty *List
	keys  *rand.Rand
	items map[int32][]any // frames of a stack
}

// k is a string object that all users share, as keys and actions are.
func (b *writer) k(text string) *Str {
	s := b.strs[text]
	if s == nil {
		s = &Str{text: text}
		b.strs[text] = s
	}
	return s
}

func (b *writer) dict(pairs ...any) *Dict {
	for i := 0; i < len(pairs); i += 2 {
		pairs[i] = b.k(pairs[i].(string))
	}
	if b.Options.Extra {
		pairs = append(pairs, b.k("shoe_size"), int64(44))
	}
	if b.Options.ShuffleKeys {
		b.keys.Shuffle(len(pairs)/2, func(i, j int) {
			pairs[2*i], pairs[2*j] = pairs[2*j], pairs[2*i]
			pairs[2*i+1], pairs[2*j+1] = pairs[2*j+1], pairs[2*i+1]
		})
	}
	return &Dict{pairs: pairs}
}

// frames is the list of a traceback. Frame dicts are shared by all lists, a list by the users of one traceback.
func (b *writer) frames(stack, ctx int32) *List {
	if stack < 0 || ctx == 0 {
		return b.empty
	}
	if l := b.lists[ctx-1]; l != nil {
		return l
	}
	items, ok := b.items[stack]
	if !ok {
		for _, f := range b.Stacks[stack] {
			fr := &b.Frames[f]
			if fr.dict == nil {
				fr.dict = b.dict("name", fr.Name, "filename", fr.File, "line", int64(fr.Line))
			}
			items = append(items, fr.dict)
		}
		b.items[stack] = items
	}
	l := &List{shared: true, items: items}
	b.lists[ctx-1] = l
	return l
}

func (b *writer) has(forms ...string) bool { return slices.Contains(forms, b.Options.Form) }

func (b *writer) stream() any {
	if b.Options.npu() {
		return int64(1276474240)
	}
	return int64(0)
}

func poolID(pool int32) *Tuple { return &Tuple{items: [2]any{int64(0), int64(pool)}} }

func (b *writer) top() any {
	segments := &List{}
	ordered := slices.Clone(b.segments)
	slices.SortFunc(ordered, func(x, y *seg) int {
		if x.addr < y.addr {
			return -1
		}
		return 1
	})
	for _, g := range ordered {
		segments.items = append(segments.items, b.segment(g, int64(b.Options.Devices-1)))
	}
	for _, w := range b.spaces {
		g := &seg{addr: w.addr, size: w.size, stack: -1}
		segments.items = append(segments.items, b.rawSegment(g, int64(b.Options.Devices-1), 0, 0, 0,
			&List{items: []any{b.dict("address", w.addr, "size", w.size, "requested_size", w.req, "state", b.k("inactive"), "frames", b.empty)}}))
	}
	if b.has(FormList) {
		return segments
	}
	traces := &List{}
	for d := range b.Options.Devices {
		if d == b.Options.Devices-1 {
			traces.items = append(traces.items, b.trace())
		} else {
			traces.items = append(traces.items, &List{})
		}
	}
	pairs := []any{"segments", segments, "device_traces", traces}
	if b.Options.TracesFirst {
		pairs = []any{"device_traces", traces, "segments", segments}
	}
	if b.has(Form24, Form26, Form28, Form210, Form212, FormCPP) {
		conf := ""
		if b.Options.Expandable {
			conf = "expandable_segments:True"
		}
		pairs = append(pairs, "allocator_settings", b.dict("PYTORCH_CUDA_ALLOC_CONF", conf, "max_split_size", int64(-1), "garbage_collection_threshold", 0.0,
			"expandable_segments", b.Options.Expandable, "roundup_power2_divisions", b.dict("1", int64(0), "64", int64(0))))
	}
	if b.has(Form26, Form28, Form210, Form212, FormCPP) {
		marks := &List{}
		for _, m := range b.marks {
			marks.items = append(marks.items, b.dict("stage", b.k(m.stage), "name", m.name, "device", int64(b.Options.Devices-1), "time_us", m.time))
		}
		pairs = append(pairs, "external_annotations", marks)
	}
	if b.Options.HostSegments {
		host := b.rawSegment(&seg{addr: 0x7000_0000_0000, size: HostSize, stack: -1}, -1, HostSize, HostSize, HostSize,
			&List{items: []any{b.dict("address", uint64(0x7000_0000_0000), "size", int64(HostSize), "requested_size", int64(HostSize), "state", b.k("active_allocated"), "frames", b.empty)}})
		pairs = append(pairs, "host_segments", &List{items: []any{host}}, "host_traces", &List{})
	}
	extra := b.Options.Extra
	b.Options.Extra = false
	top := b.dict(pairs...)
	b.Options.Extra = extra
	return top
}

// HostSize is what Options.HostSegments adds in one block.
const HostSize = 4 << 20

func (b *writer) segment(g *seg, device int64) *Dict {
	var allocated, activeSize, requested int64
	blocks := &List{}
	for _, k := range g.blocks {
		state := [...]string{"inactive", "active_allocated", "active_pending_free"}[k.state]
		if k.state != inactive {
			activeSize += k.size
			requested += k.req
			if k.state == active {
				allocated += k.size
			}
		}
		frames := b.empty
		if k.state != inactive {
			frames = b.frames(k.stack, k.ctx)
		}
		if !b.has(Form20) {
			blocks.items = append(blocks.items, b.dict("address", k.addr, "size", k.size, "requested_size", k.req, "state", b.k(state), "frames", frames))
			continue
		}
		pairs := []any{"size", k.size, "requested_size", k.req, "state", b.k(state)}
		if k.state != inactive {
			h := []any{"addr", k.addr, "real_size", k.req}
			if frames != b.empty {
				h = append(h, "frames", frames)
			}
			pairs = append(pairs, "history", &List{items: []any{b.dict(h...)}})
		}
		blocks.items = append(blocks.items, b.dict(pairs...))
	}
	return b.rawSegment(g, device, allocated, activeSize, requested, blocks)
}

func (b *writer) rawSegment(g *seg, device, allocated, activeSize, requested int64, blocks *List) *Dict {
	kind := "large"
	if g.small {
		kind = "small"
	}
	frames := b.frames(g.stack, g.ctx)
	pairs := []any{"device", device, "address", g.addr, "total_size", g.size, "allocated_size", allocated, "active_size", activeSize}
	if !b.has(Form20) {
		pairs = append(pairs, "requested_size", requested)
	}
	pairs = append(pairs, "stream", b.stream())
	if b.Options.npu() {
		pairs = append(pairs, "segment_pool_id", poolID(g.pool))
	}
	pairs = append(pairs, "segment_type", b.k(kind))
	if b.has(Form20) {
		return b.dict(append(pairs, "blocks", blocks)...)
	}
	if !b.Options.npu() {
		pairs = append(pairs, "segment_pool_id", poolID(g.pool))
	}
	pairs = append(pairs, "is_expandable", g.expandable)
	if frames == b.empty {
		return b.dict(append(pairs, "frames", frames, "blocks", blocks)...)
	}
	return b.dict(append(pairs, "blocks", blocks, "frames", frames)...)
}

func (b *writer) trace() *List {
	events := b.events[b.dumped:]
	spaces := 3 * len(b.spaces)
	extra := 0
	if b.Options.Extra {
		extra = 1
	}
	return &List{n: spaces + len(events) + extra, next: func(i int) any {
		switch {
		case i < spaces:
			w := b.spaces[i/3]
			action := [...]string{"workspace_snapshot", "segment_alloc", "alloc"}[i%3]
			return b.dict("action", b.k(action), "addr", w.addr, "size", w.size, "stream", b.stream())
		case i-spaces < len(events):
			return b.event(&events[i-spaces])
		}
		return b.dict("action", b.k("teleport"), "addr", int64(1), "size", int64(2), "stream", b.stream())
	}}
}

func (b *writer) event(e *event) *Dict {
	where := "addr"
	if e.action == evOOM {
		where = "device_free"
	}
	pairs := []any{"action", b.k(actions[e.action]), where, e.addr, "size", e.size, "stream", b.stream()}
	metadata := any(b.k(""))
	if b.Options.StepMarks {
		metadata = fmt.Sprintf("step=%d", e.step)
	}
	if b.has(FormNPUMaster) {
		pairs = append(pairs, "pool_id", poolID(e.pool))
	}
	if b.has(Form24, Form26, Form28, Form210, Form212) {
		pairs = append(pairs, "time_us", e.time)
	}
	if b.has(Form28, Form210, Form212, FormCPP) {
		pairs = append(pairs, "compile_context", "N/A")
	}
	if b.has(Form210, Form212, FormCPP) {
		pairs = append(pairs, "user_metadata", metadata)
	}
	if b.has(FormCPP) {
		pairs = append(pairs, "time_us", e.time)
	}
	if b.has(Form212) {
		pairs = append(pairs, "pool_id", poolID(e.pool))
	}
	if e.backward != 0 {
		lines := &List{}
		stack := b.Stacks[e.backward]
		for i := len(stack) - 1; i >= 0; i-- {
			f := b.Frames[stack[i]]
			lines.items = append(lines.items, fmt.Sprintf("  File \"%s\", line %d, in %s\n    ...\n", f.File, f.Line, f.Name))
		}
		pairs = append(pairs, "forward_frames", lines)
	}
	if !b.Options.NoContext {
		pairs = append(pairs, "frames", b.frames(e.stack, e.ctx))
	}
	// These are the last to need a traceback. The lists are let go, or a large file would keep all of them in memory.
	if e.action == evAlloc || e.action == evFreeCompleted {
		b.lists[e.ctx-1] = nil
	}
	return b.dict(pairs...)
}
