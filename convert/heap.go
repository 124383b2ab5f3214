// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"io"
	"slices"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/jemalloc"
	"github.com/heapwire/heapwire/convert/stack"
	"github.com/heapwire/heapwire/convert/symbol"
)

// Options says how to convert a heap dump.
type Options struct {
	// Name is what errors and warnings call the input, usually its path.
	Name string
	// Symbols names native frames. Nil leaves them without functions, as for a dump from another machine.
	Symbols *symbol.Resolver
	// KeepThreads splits stacks by thread name, see [jemalloc.Options].
	KeepThreads bool
	// Stack says which frames stay.
	Stack stack.Options
}

// Heap is one heap dump, converted.
type Heap struct {
	Profile *profile.Profile
	// Giants are the giant requests since the dump before. They are events: the profile knows nothing of them.
	Giants []jemalloc.Giant
	Meta   jemalloc.Meta
	// Mappings are the largest named mappings outside of any allocator.
	Mappings []jemalloc.Mapping
	// Report counts what was odd about the dump, Symbols what became of the profile's native frames.
	Report  jemalloc.Report
	Symbols symbol.Report
	// Warnings are those of both reports, a line each, for a person.
	Warnings []string
}

// HeapDump reads one heap_v2 dump to its end. The error is not nil only if nothing of it is usable; it wraps
// [jemalloc.ErrNotHeapV2], [jemalloc.ErrTruncated] or the error of r.
func HeapDump(r io.Reader, opts Options) (*Heap, error) {
	dump, err := jemalloc.Parse(r, jemalloc.Options{Name: opts.Name, KeepThreads: opts.KeepThreads})
	if err != nil {
		return nil, err
	}
	h := &Heap{Profile: dump.Profile, Meta: dump.Meta, Mappings: dump.Mappings, Report: dump.Report, Warnings: dump.Report.Warnings()}
	if opts.Symbols != nil {
		h.Symbols = opts.Symbols.Symbolize(h.Profile)
		h.Warnings = append(h.Warnings, h.Symbols.Warnings()...)
	}
	stack.Clean(h.Profile, opts.Stack)
	h.giants(dump, opts)
	return h, nil
}

// giants names and cleans the stacks of the giant requests as those of the profile. A file that the profile's frames
// could not use either has been told already.
func (h *Heap) giants(dump *jemalloc.Dump, opts Options) {
	h.Giants = dump.Giants
	if len(h.Giants) == 0 {
		return
	}
	if opts.Symbols != nil {
		report := opts.Symbols.Symbolize(dump.GiantStacks)
		report.Files = slices.DeleteFunc(report.Files, func(f symbol.FileReport) bool {
			return slices.ContainsFunc(h.Symbols.Files, func(told symbol.FileReport) bool { return told.Path == f.Path })
		})
		h.Warnings = append(h.Warnings, report.Warnings()...)
	}
	stack.Clean(dump.GiantStacks, opts.Stack)
	for i, s := range dump.GiantStacks.Sample {
		h.Giants[i].Stack = s.Location
	}
}
