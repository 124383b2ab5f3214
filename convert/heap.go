// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"io"

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
	Meta    jemalloc.Meta
	// Report counts what was odd about the dump, Symbols what became of its native frames.
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
	h := &Heap{Profile: dump.Profile, Meta: dump.Meta, Report: dump.Report, Warnings: dump.Report.Warnings()}
	if opts.Symbols != nil {
		h.Symbols = opts.Symbols.Symbolize(h.Profile)
		h.Warnings = append(h.Warnings, h.Symbols.Warnings()...)
	}
	stack.Clean(h.Profile, opts.Stack)
	return h, nil
}
