// SPDX-License-Identifier: Apache-2.0

package jemalloc

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/heapwire/heapwire/convert/stack"
)

// Modes of a dump, told from its header line (docs of scale have the two meanings).
const (
	ModeRaw       = "raw"        // sums of what was sampled; objects of stacks with mixed sizes are far off
	ModeUnbiased  = "unbiased"   // jemalloc's own estimates, in disguise
	ModeScaleFree = "scale-free" // every allocation sampled
	ModeUndecided = "undecided"  // the header fits neither: stacks are missing, or the program was busy
)

// Report counts what was odd about a dump and did not keep it from being read.
type Report struct {
	Name        string // what the input was called
	SampleBytes int64  // mean bytes between samples, from the header
	Mode        string
	// ShareFound is how much of the header's bytes the stacks account for: 1 for a whole dump, give or take what the
	// program did while it was written.
	ShareFound float64
	// Estimate sums jemalloc's stacks before rounding: alloc objects and bytes, inuse objects and bytes.
	Estimate [4]float64
	// SmallObjects and SmallBytes are the same for small Python objects, which jemalloc knows nothing of.
	SmallObjects, SmallBytes float64

	Stacks         int // @ entries with their t*: line
	EmptyStacks    int // those without any frame: jemalloc could not unwind
	IdleStacks     int // those with nothing live
	CutStacks      int // @ entries without a t*: line
	DeepStacks     int // stacks of more than 4096 frames, which lost the outermost
	LeadingLines   int // before the header
	ThreadLines    int
	UnknownLines   int // of a kind that this reader does not know
	GarbageLines   int // of a known kind, but not readable
	LongLines      int // longer than 1 MiB; the rest of each was thrown away
	SmallStacks    int // records of HEAPWIRE_OBJECTS
	GiantsLeftOut  int // giant requests beyond the first 256
	NamelessTokens int // Python locations whose function has no row in HEAPWIRE_FRAMES
	UnmappedFrames int // distinct addresses in no mapping: JIT code, or mappings that are missing

	Mappings bool // there is a MAPPED_LIBRARIES part
	Sections []Section

	// Truncated tells that the input ends early, at byte TruncatedAt; Lost says what that costs.
	Truncated   bool
	TruncatedAt int64
	Lost        string

	first map[finding]place
}

// finding is a kind of line worth an example in a warning.
type finding int

const (
	unknownLine finding = iota
	garbageLine
	longLine
)

type place struct {
	line   int
	offset int64
	text   string
}

// note keeps the first line of each kind.
func (p *parser) note(kind finding, line []byte) {
	if _, ok := p.report.first[kind]; ok {
		return
	}
	if p.report.first == nil {
		p.report.first = map[finding]place{}
	}
	p.report.first[kind] = place{p.lines.number, p.lines.offset, quote(line)}
}

// judge says how much of the dump is here and in which mode its numbers are.
func (p *parser) judge() {
	r := &p.report
	p.judgeMode()
	last := len(r.Sections) - 1
	every := "every stack is there"
	if (p.tokens > 0 || last >= 0) && !slices.ContainsFunc(r.Sections, func(s Section) bool { return s.Name == sectionFrames }) {
		every = "every stack of malloc is there" // small Python objects come shortly before the last section
	}
	if p.tokens > 0 || len(r.Sections) > 0 {
		for _, name := range []string{sectionMeta, sectionBuildIDs, sectionFrames} {
			if !slices.ContainsFunc(r.Sections, func(s Section) bool { return s.Name == name }) {
				r.Sections = append(r.Sections, Section{Name: name, Offset: -1, State: SectionMissing})
			}
		}
	}
	switch {
	case last >= 0 && r.Sections[last].Name == sectionObjects && r.Sections[last].State == SectionCut:
		r.Lost = sectionObjects + " is not whole: small Python objects are missing; every stack of malloc is there"
	case !r.Mappings:
		r.Lost = "stacks may be missing, and native frames have no file"
	case !p.lines.whole && !p.lines.long && len(r.Sections) == 0:
		r.Lost = "the list of mappings is not whole; " + every
	case len(r.Sections) == 0 && p.beyond:
		r.Lost = "the list of mappings ends below code that ran; " + every
	case last >= 0 && r.Sections[last].State == SectionCut:
		r.Lost = r.Sections[last].Name + " is not whole; " + every
	case slices.ContainsFunc(r.Sections, func(s Section) bool { return s.State == SectionMissing }):
		r.Lost = "sections are missing; " + every
	case !p.lines.whole:
		r.Lost = "the last line is not whole"
	}
	if r.Lost != "" {
		r.Truncated, r.TruncatedAt = true, p.lines.base
	}
}

// judgeMode compares the header line with its stacks. A raw header is their sum; an unbiased one is the same inversion
// applied to the totals, so that its printed numbers mean nothing but its estimate does (worst seen: 0.13 % apart).
func (p *parser) judgeMode() {
	r := &p.report
	r.Mode, r.ShareFound = ModeUndecided, 1
	if p.total == nil {
		return
	}
	_, whole := scale(p.total.objects, p.total.bytes, p.sampleBytes)
	raw := share(p.sumBytes, float64(p.total.bytes))
	unbiased := share(r.Estimate[inuseSpace], whole)
	switch {
	case p.sampleBytes <= 1:
		r.Mode, r.ShareFound = ModeScaleFree, raw
	case p.sumObjects == float64(p.total.objects) && p.sumBytes == float64(p.total.bytes):
		r.Mode, r.ShareFound = ModeRaw, 1
	case math.Abs(unbiased-1) <= 0.01:
		r.Mode, r.ShareFound = ModeUnbiased, unbiased
	case p.rawLooking():
		r.ShareFound = raw
	default:
		r.ShareFound = unbiased
	}
}

// rawLooking tells the mode of a dump whose header does not: what the shim noted, else that every stack of one sample
// has the size of a block, which unbiased figures often have not.
func (p *parser) rawLooking() bool {
	if _, ok := p.meta.Raw["unbiased"]; ok {
		return !p.meta.Unbiased
	}
	return p.singles > 0 && p.singles == p.singlesClass
}

func share(part, whole float64) float64 {
	if whole == 0 {
		return 1
	}
	return part / whole
}

// Warnings tells a person what was odd, a line each, the worst first. An empty list means nothing was.
func (r Report) Warnings() []string {
	var out []string
	add := func(format string, args ...any) {
		out = append(out, r.Name+": "+fmt.Sprintf(format, args...))
	}
	if r.Truncated {
		add("byte %d: the dump ends here, too early: %s", r.TruncatedAt, r.Lost)
	}
	if r.ShareFound < 0.99 {
		add("the stacks account for %.1f %% of the bytes in the header: the rest is missing", 100*r.ShareFound)
	}
	if r.CutStacks > 0 {
		add("%s without counts left out", plural(r.CutStacks, "stack"))
	}
	if r.LongLines > 0 {
		add("%s longer than 1 MiB, the rest of each skipped; first: %s", plural(r.LongLines, "line"), r.place(longLine))
	}
	if r.GarbageLines > 0 {
		add("%s not readable and left out; first: %s", plural(r.GarbageLines, "line"), r.place(garbageLine))
	}
	if r.UnknownLines > 0 {
		add("%s of an unknown kind left out; first: %s", plural(r.UnknownLines, "line"), r.place(unknownLine))
	}
	if r.DeepStacks > 0 {
		add("%s deeper than %d frames, their outermost frames left out", plural(r.DeepStacks, "stack"), maxDepth)
	}
	if r.EmptyStacks > 0 {
		add("%s without frames, shown as %s: the allocator could not unwind there", plural(r.EmptyStacks, "stack"), stack.NoStack)
	}
	for _, s := range r.Sections {
		switch s.State {
		case SectionMissing:
			add("%s is missing%s", s.Name, cost(s.Name))
		case SectionCut:
			add("byte %d: %s is not closed by an empty line: rows may be missing%s", s.Offset, s.Name, cost(s.Name))
		case SectionSkipped:
			add("byte %d: %s version %q is not known to this reader and left out", s.Offset, s.Name, s.Version)
		}
	}
	if r.GiantsLeftOut > 0 {
		add("%s beyond the first %d left out", plural(r.GiantsLeftOut, "giant request"), maxGiants)
	}
	if r.NamelessTokens > 0 {
		add("%s without a name: no row in %s", plural(r.NamelessTokens, "Python line"), sectionFrames)
	}
	if r.UnmappedFrames > 0 && r.Mappings {
		add("%s in no mapping (code made at run time, or unloaded since)", plural(r.UnmappedFrames, "address"))
	}
	return out
}

func (r Report) place(kind finding) string {
	at := r.first[kind]
	return fmt.Sprintf("line %d (byte %d): %s", at.line, at.offset, at.text)
}

func cost(section string) string {
	switch section {
	case sectionMeta:
		return ": time, interval and allocator figures are not known"
	case sectionBuildIDs:
		return ": native frames cannot be checked against the files that are here"
	case sectionMappings:
		return ": mapped files and shared memory may be missing from the account"
	case sectionGiant:
		return ": giant requests may be missing"
	case sectionObjects:
		return ": small Python objects may be missing"
	case sectionFrames:
		return ": Python frames keep their line and lose their name"
	}
	return ""
}

func plural(n int, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "s"):
		return fmt.Sprintf("%d %ses", n, what)
	}
	return fmt.Sprintf("%d %ss", n, what)
}
