// SPDX-License-Identifier: Apache-2.0

package jemalloc

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"io"

	"github.com/google/pprof/profile"
)

var (
	// ErrNotHeapV2 says that the input is no jemalloc heap_v2 dump; the error that wraps it says what it is instead,
	// where that is known.
	ErrNotHeapV2 = errors.New("not a jemalloc heap_v2 dump")
	// ErrTruncated says that the input ends before its first whole stack, so that nothing of it is usable. A dump that is
	// cut later is no error: see [Report.Truncated].
	ErrTruncated = errors.New("truncated dump")
)

// maxDepth bounds the frames kept of one stack, from the leaf. jemalloc's own limit is 128, at most 256 (prof_bt_max).
const maxDepth = 4096

// Options says how to read a dump.
type Options struct {
	// Name is what errors and warnings call the input, usually its path. Default: "dump".
	Name string
	// KeepThreads splits each stack by thread name (label thread_name), by the shares of its per-thread lines. The sums
	// stay those of the stack. Threads without a name share one sample without the label.
	KeepThreads bool
}

// Dump is one dump, read.
type Dump struct {
	// Profile has the sample types alloc_objects/count and alloc_space/bytes if the dump has cumulative figures, then
	// inuse_objects/count and inuse_space/bytes: estimates of the whole program at dump time, after scaling, in usable
	// bytes. Native locations have no functions yet. Sampled small Python objects are among it.
	Profile *profile.Profile
	// Giants are the giant requests since the dump before, in the order in which the dump has them.
	Giants []Giant
	// GiantStacks has one sample a giant, in their order; nil without giants. It is for naming and cleaning their stacks
	// by the same code as the profile's ([Giant.Stack] has to be taken from it anew afterwards), and shares nothing with
	// Profile.
	GiantStacks *profile.Profile
	// Meta is what the shim noted in HEAPWIRE_META.
	Meta Meta
	// Mappings are the largest named mappings outside of any allocator, largest first.
	Mappings []Mapping
	// Report counts what was odd.
	Report Report
}

// Parse reads one dump to its end. The error is not nil only if nothing is usable; everything less is in Dump.Report.
// A failure of r other than its end (io.EOF, or io.ErrUnexpectedEOF from a cut compressed stream) is returned.
func Parse(r io.Reader, opts Options) (*Dump, error) {
	if opts.Name == "" {
		opts.Name = "dump"
	}
	p := &parser{
		opts:  opts,
		lines: newLineReader(r),
		table: newAddressTable(),
		seed:  maphash.MakeSeed(),
	}
	p.report.Name = opts.Name
	if err := p.header(); err != nil {
		return nil, err
	}
	for p.lines.next() {
		p.one(trimRight(p.lines.line))
	}
	if err := p.lines.failure(); err != nil {
		return nil, fmt.Errorf("%s: reading byte %d: %w", opts.Name, p.lines.base, err)
	}
	p.closeSection(false)
	if p.report.Stacks == 0 && p.part == inStacks {
		return nil, p.errorf("%w: it ends at byte %d, before its first whole stack", ErrTruncated, p.lines.base)
	}
	return p.finish(), nil
}

// part is where in the grammar the parser stands.
type part int

const (
	inStacks part = iota
	inMappings
	inSection
)

type parser struct {
	opts   Options
	lines  *lineReader
	report Report

	sampleBytes float64
	part        part
	total       *counts // the header's own t*: line

	table     *addressTable
	arena     stackArena
	addresses []uint64 // of the last @ line
	frames    []uint32 // the same as numbers of the table
	stacks    entryList
	// open tells that the last @ line still waits for its t*: line, counted that it has it, so that thread lines belong.
	open, counted bool
	tokens        int     // distinct Python tokens, counted at the end
	smallBytes    float64 // the sampling interval of HEAPWIRE_OBJECTS; 0 while it is not known

	sumObjects, sumBytes  float64
	singles, singlesClass int

	threadNames map[uint64]string
	shares      map[int][]threadShare // by number of the stack

	maps    []mapping
	beyond  bool // a frame lies above all mappings
	objects []object
	giants  []giant
	named   []Mapping
	// giantTable is theirs alone, so that no address of theirs gets into the profile.
	giantTable *addressTable
	section    *Section
	handle     func(line []byte)
	meta       Meta

	rows      map[uint32]*row
	rowTexts  map[uint64]*row // by a hash of the text behind the id
	rowBlock  []row           // free ones
	seed      maphash.Seed
	fileNames map[string]string
}

// entry is one @ line with its counts: its frames as numbers of the address table, and its figures after scaling.
type entry struct {
	frames stackFrames
	value  values
}

// values are estimates in the order of the profile's sample types.
type values [4]float64

const (
	allocObjects = iota
	allocSpace
	inuseObjects
	inuseSpace
)

func (p *parser) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: line %d (byte %d): "+format,
		append([]any{p.opts.Name, p.lines.number, p.lines.offset}, args...)...)
}

// one reads a line behind the header line, trimmed on the right.
func (p *parser) one(line []byte) {
	if p.lines.long {
		p.report.LongLines++
		p.note(longLine, line)
	}
	if bytes.HasPrefix(line, sectionPrefix) && p.openSection(line) {
		return
	}
	switch p.part {
	case inStacks:
		p.stackLine(line)
	case inMappings:
		p.mappingLine(line)
	case inSection:
		if len(line) == 0 && p.lines.whole {
			p.closeSection(true)
			return
		}
		if p.handle == nil {
			return
		}
		if !p.lines.whole {
			p.drop(line)
			return
		}
		p.handle(line)
	}
}

// drop counts a line that is not all there. At the end of the input that is the cut itself, told elsewhere.
func (p *parser) drop(line []byte) {
	if p.lines.long {
		p.garbage(line)
	}
}

func (p *parser) stackLine(line []byte) {
	trimmed := trimLeft(line)
	switch {
	case len(trimmed) == 0:
	case trimmed[0] == '@':
		p.stackFrames(trimmed[1:])
	case bytes.HasPrefix(trimmed, allThreads):
		p.stackCounts(trimmed)
	case trimmed[0] == 't' && len(trimmed) > 1 && isDigit(trimmed[1]):
		p.report.ThreadLines++
		if p.opts.KeepThreads {
			p.threadLine(trimmed)
		}
	case bytes.Equal(trimmed, mappedLibraries) && p.lines.whole:
		p.endStack()
		p.part = inMappings
		p.report.Mappings = true
	default:
		// ClickHouse's jemalloc adds "f: ..." lines, for one.
		if p.lines.whole || p.lines.long {
			p.report.UnknownLines++
			p.note(unknownLine, line)
		}
	}
}

// endStack gives up an @ line that never got its counts.
func (p *parser) endStack() {
	if p.open {
		p.report.CutStacks++
	}
	p.open, p.counted = false, false
}

func (p *parser) garbage(line []byte) {
	p.report.GarbageLines++
	p.note(garbageLine, line)
}
