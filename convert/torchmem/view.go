// SPDX-License-Identifier: Apache-2.0

package torchmem

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/stack"
)

// Views are the questions that a snapshot answers, by the names that [Snapshot.View] takes.
//
//	live       requested bytes of the blocks in use at the dump, those that wait for another stream included
//	peak       the same when the window's live bytes were highest
//	oom        the same at the last out-of-memory error, and the request that failed at the leaf [OOMRequest] of its stack
//	leak       survivors of stacks that have them from several steps, see [Leak]
//	survivors  allocated in the window and live at its end
//	alloc      allocated in the window (alloc_objects, alloc_space)
//	reserved   bytes of the segments, by the stack that made them
//	inactive   bytes of the blocks not in use, by the stack that made their segment
//	holders    the same bytes, shared out over the blocks in use that keep the segment from being given back
//	rounding   what the allocator set aside beyond the request, by block
//	pending    blocks that were freed and wait for another stream
var Views = []string{"live", "peak", "oom", "leak", "survivors", "alloc", "reserved", "inactive", "holders", "rounding", "pending"}

// View makes the profile of a view, for one device or, with "", for all; device is "cuda:0" or "0". Its sample types are
// inuse_objects/count and inuse_space/bytes, alloc_objects and alloc_space for alloc. Every sample has the label device,
// and pool where its memory is in a private pool. A view that has nothing is a profile without samples.
//
// Frames that PyTorch's viewer leaves out are left out, unless Options.AllFrames is set. Python frames sit on the mapping
// [stack.PythonMapping], C++ frames on none.
func (s *Snapshot) View(name, device string) (*profile.Profile, error) {
	if !slices.Contains(Views, name) {
		return nil, fmt.Errorf("view %q: want one of %s", name, strings.Join(Views, ", "))
	}
	devices, err := s.pick(device)
	if err != nil {
		return nil, err
	}
	b := s.newProfile(name == "alloc")
	for _, d := range devices {
		b.add(d, d.views[name])
	}
	return b.profile(), nil
}

// OOMView makes the profile of one out-of-memory error: the live blocks just then and the request that failed.
func (s *Snapshot) OOMView(o *OOM) (*profile.Profile, error) {
	for _, d := range s.Devices {
		if slices.Contains(d.OOMs, o) {
			b := s.newProfile(false)
			b.add(d, o.rows)
			p := b.profile()
			if !o.Time.IsZero() {
				p.TimeNanos = o.Time.UnixNano()
			}
			return p, nil
		}
	}
	return nil, fmt.Errorf("out-of-memory error at event %d: not of this snapshot", o.Index)
}

// Has tells whether a view has samples for a device, "" for any.
func (s *Snapshot) Has(name, device string) bool {
	devices, err := s.pick(device)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(devices, func(d *Device) bool { return len(d.views[name]) > 0 })
}

// DefaultView is the view that tells most: oom where there was one, then leak, then live, and peak where nothing is live.
func (s *Snapshot) DefaultView(device string) string {
	for _, name := range []string{"oom", "leak", "live", "peak", "reserved"} {
		if s.Has(name, device) {
			return name
		}
	}
	return "live"
}

func (s *Snapshot) pick(device string) ([]*Device, error) {
	if device == "" {
		return s.Devices, nil
	}
	var names []string
	for _, d := range s.Devices {
		if d.Name == device || d.Kind != "pinned" && fmt.Sprint(d.Index) == device {
			return []*Device{d}, nil
		}
		names = append(names, d.Name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("device %q: the snapshot has none", device)
	}
	return nil, fmt.Errorf("device %q: the snapshot has %s", device, strings.Join(names, ", "))
}

// profileBuilder makes locations of frames, and samples of rows.
type profileBuilder struct {
	s         *Snapshot
	p         *profile.Profile
	python    *profile.Mapping
	functions map[functionKey]*profile.Function
	locations map[uint32]*profile.Location // by frame
	notes     [len(noteTexts)]*profile.Location
	plumbing  map[uint32]bool
	samples   map[string]*profile.Sample
}

type functionKey struct {
	name, file string
}

func (s *Snapshot) newProfile(alloc bool) *profileBuilder {
	prefix := "inuse"
	if alloc {
		prefix = "alloc"
	}
	p := &profile.Profile{
		SampleType:        []*profile.ValueType{{Type: prefix + "_objects", Unit: "count"}, {Type: prefix + "_space", Unit: "bytes"}},
		DefaultSampleType: prefix + "_space",
		PeriodType:        &profile.ValueType{Type: "space", Unit: "bytes"},
		Period:            1,
	}
	if !s.Time.IsZero() {
		p.TimeNanos = s.Time.UnixNano()
		if !s.Start.IsZero() {
			p.DurationNanos = s.Time.Sub(s.Start).Nanoseconds()
		}
	}
	return &profileBuilder{
		s: s, p: p, functions: map[functionKey]*profile.Function{}, locations: map[uint32]*profile.Location{},
		plumbing: map[uint32]bool{}, samples: map[string]*profile.Sample{},
	}
}

func (b *profileBuilder) add(d *Device, rows []row) {
	var key []byte
	for _, r := range rows {
		frames := b.s.stacks.visible(b.s.stacks.get(r.stack), b.s.opts.AllFrames, b.isPlumbing)
		locations := make([]*profile.Location, 0, len(frames)+1)
		if r.note != noNote {
			locations = append(locations, b.note(r.note))
		}
		for _, f := range frames {
			locations = append(locations, b.location(f))
		}
		key = append(key[:0], d.Name...)
		key = append(key, 0, byte(r.pool), byte(r.pool>>8), byte(r.pool>>16), byte(r.pool>>24))
		for _, l := range locations {
			key = append(key, byte(l.ID), byte(l.ID>>8), byte(l.ID>>16), byte(l.ID>>24))
		}
		sample := b.samples[string(key)]
		if sample == nil {
			sample = &profile.Sample{Location: locations, Value: make([]int64, 2), Label: map[string][]string{"device": {d.Name}}}
			if r.pool != 0 {
				p := b.s.pools[r.pool]
				sample.Label["pool"] = []string{fmt.Sprintf("%d,%d", p.a, p.b)}
			}
			b.samples[string(key)] = sample
			b.p.Sample = append(b.p.Sample, sample)
		}
		sample.Value[0] += r.objects
		sample.Value[1] += r.bytes
	}
}

func (b *profileBuilder) profile() *profile.Profile {
	if b.python != nil {
		b.python.ID = 1
		b.p.Mapping = []*profile.Mapping{b.python}
	}
	stack.Compact(b.p)
	return b.p
}

func (b *profileBuilder) texts(f uint32) (name, file string) {
	fr := b.s.stacks.frames[f]
	return b.s.texts.Text(int64(fr.name)), b.s.texts.Text(int64(fr.file))
}

func (b *profileBuilder) isPlumbing(f uint32) bool {
	is, ok := b.plumbing[f]
	if !ok {
		is = isPlumbing(b.texts(f))
		b.plumbing[f] = is
	}
	return is
}

func (b *profileBuilder) location(f uint32) *profile.Location {
	l := b.locations[f]
	if l != nil {
		return l
	}
	name, file := b.texts(f)
	l = b.newLocation()
	if isPython(file) {
		if b.python == nil {
			b.python = &profile.Mapping{File: stack.PythonMapping, HasFunctions: true, HasFilenames: true, HasLineNumbers: true}
		}
		l.Mapping = b.python
	} else {
		file = nativeFile(file)
	}
	l.Line = []profile.Line{{Function: b.function(name, file), Line: int64(b.s.stacks.frames[f].line)}}
	b.locations[f] = l
	return l
}

func (b *profileBuilder) note(n note) *profile.Location {
	if b.notes[n] == nil {
		l := b.newLocation()
		l.Line = []profile.Line{{Function: b.function(noteTexts[n], "")}}
		b.notes[n] = l
	}
	return b.notes[n]
}

func (b *profileBuilder) newLocation() *profile.Location {
	l := &profile.Location{ID: uint64(len(b.p.Location) + 1)}
	b.p.Location = append(b.p.Location, l)
	return l
}

func (b *profileBuilder) function(name, file string) *profile.Function {
	k := functionKey{name, file}
	f := b.functions[k]
	if f == nil {
		f = &profile.Function{ID: uint64(len(b.p.Function) + 1), Name: name, SystemName: name, Filename: file}
		b.functions[k] = f
		b.p.Function = append(b.p.Function, f)
	}
	return f
}
