// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/heapwire/heapwire/convert/stack"
)

// Kind says what a verdict is.
type Kind string

const (
	Leak          Kind = "leak"                // a stack that grows and goes on growing
	Undecided     Kind = "growth"              // a stack that has grown; whether it goes on cannot be told yet
	Plateau       Kind = "plateau"             // a stack that has grown and has stopped
	Spike         Kind = "spike"               // much more was live for a short while
	Retention     Kind = "allocator_retention" // the allocator keeps resident what the program has freed
	Fragmentation Kind = "fragmentation"       // a device's allocator has memory in holes that nobody can use
	Rounding      Kind = "rounding"            // an allocator gives much more than was asked for
	OutsideMalloc Kind = "outside_malloc"      // memory that no malloc knows of
	CopyOnWrite   Kind = "copy_on_write"       // a forked process makes pages its own by writing to them
	Giant         Kind = "giant_allocation"    // one absurdly large request
)

// Number is one of the figures that led to a verdict. The key is for machines: "growth", "resident"; the value in bytes, or
// what the key says.
type Number struct {
	Key   string
	Value float64
}

// Verdict is what the figures of a process mean.
type Verdict struct {
	Kind    Kind
	Process string // name of the process, as [Process] has it
	Rank    string
	// Bytes is what it is about; verdicts are ordered by it.
	Bytes int64
	// Says tells it in a sentence or two, with the numbers; Helps what usually helps.
	Says, Helps string
	Numbers     []Number
	// Key is the stack that it is about, 0 for none, and Stack its frames.
	Key   uint64
	Stack Named
	// Confidence is the probability that the change is one, given the sampling error; 1 where nothing is an estimate.
	Confidence float64
}

const (
	// least are the bytes from which on a stack is worth a verdict, and worthShare the share of what is live.
	leastGrowth = 4 << 20
	worthShare  = 0.02
	// certain is how many standard errors growth takes for a verdict: by chance once in 30 000 stacks.
	certain = 4
	// leastFigure keeps small processes out of the verdicts on figures; bigShare is the share of resident memory from which
	// on a part of it is worth one.
	leastFigure = 32 << 20
	bigShare    = 0.25
	// leastPeak is how much a peak must stand out.
	leastPeak = 16 << 20
)

// Process is a series with who it is of.
type Process struct {
	Name, Rank string
	Series     *Series
	Names      map[uint64]Named
	// Growth is Series.Growth(Names), for who has it already; nil has it made.
	Growth []Growth
	Giants []string // single huge requests, a line each
}

// Verdicts says what the figures of a process mean, what matters most first.
func (p Process) Verdicts() []Verdict {
	var out []Verdict
	if p.Series.Dumps() > 0 {
		out = append(out, p.grown()...)
		for _, judge := range []func() (Verdict, bool){p.spike, p.retention, p.copyOnWrite} {
			if v, ok := judge(); ok {
				out = append(out, v)
			}
		}
		out = append(out, p.outside()...)
	}
	for _, line := range p.Giants {
		out = append(out, Verdict{
			Kind: Giant, Confidence: 1, Says: "one " + strings.TrimPrefix(line, "one ") + ", noted before a page of it was touched",
			Helps: "check what the size is computed from: a length read from the wire or a file, a negative number that became unsigned, a shape multiplied out",
		})
	}
	for i := range out {
		out[i].Process, out[i].Rank = p.Name, p.Rank
	}
	Order(out)
	return out
}

// importance: what ends a process first comes first.
var importance = []Kind{Giant, Leak, OutsideMalloc, CopyOnWrite, Retention, Fragmentation, Rounding, Undecided, Spike, Plateau}

// Order sorts verdicts: those that end a process first, then by bytes.
func Order(v []Verdict) {
	slices.SortStableFunc(v, func(a, b Verdict) int {
		return cmp.Or(cmp.Compare(slices.Index(importance, a.Kind), slices.Index(importance, b.Kind)), cmp.Compare(b.Bytes, a.Bytes))
	})
}

// grown judges each stack's growth. One that grows while all that is live does not has taken over what another held.
func (p Process) grown() []Verdict {
	s := p.Series
	if s.Dumps() < minDumps {
		return nil
	}
	rows := p.Growth
	if rows == nil {
		rows = s.Growth(p.Names)
	}
	total := s.Total()
	var out []Verdict
	for _, g := range rows {
		if g.Bytes() < leastGrowth || float64(g.Bytes()) < worthShare*float64(s.last.Live.Bytes) ||
			deviations(float64(g.Bytes()), g.Sigma) < certain {
			continue
		}
		switch {
		case g.Shape == Growing && float64(total.Bytes()) >= 0.5*float64(g.Steady):
			out = append(out, s.leak(g))
		case g.Shape == Grew:
			out = append(out, s.undecided(g))
		case g.Shape == LevelsOff:
			out = append(out, s.plateau(g))
		}
	}
	return out
}

func (s *Series) leak(g Growth) Verdict {
	v := Verdict{
		Kind: Leak, Bytes: g.Bytes(), Key: g.Key, Stack: g.Named, Confidence: g.Confidence,
		Helps: "find what keeps these objects: a list or dict that is never cleared, a cache without a bound, a callback that is never removed; the callers tell who fills it",
		Numbers: []Number{
			{"growth", float64(g.Bytes())}, {"growth_error", math.Round(g.Sigma)}, {"growth_per_second", g.PerSecond},
			{"held", float64(g.Last)}, {"share", g.Share}, {"dumps", float64(s.dumps)}, {"first_seen", float64(g.FirstSeen + 1)},
		},
	}
	if g.PerStep > 0 {
		v.Numbers = append(v.Numbers, Number{"growth_per_step", g.PerStep})
	}
	v.Says = fmt.Sprintf("%s holds %s more than in the first of %d dumps and goes on growing: %s; %s sure, the sampling error is ±%s; it holds %.0f%% of the live heap",
		g.Place(), stack.Size(g.Bytes()), s.dumps, g.Slope(), Percent(g.Confidence), stack.Size(int64(g.Sigma)), 100*g.Share)
	return v
}

func (s *Series) undecided(g Growth) Verdict {
	return Verdict{
		Kind: Undecided, Bytes: g.Bytes(), Key: g.Key, Stack: g.Named, Confidence: g.Confidence,
		Says: fmt.Sprintf("%s holds %s more than in the first of %d dumps, which are too few to tell whether it goes on; the sampling error is ±%s; it holds %.0f%% of the live heap",
			g.Place(), stack.Size(g.Bytes()), s.dumps, stack.Size(int64(g.Sigma)), 100*g.Share),
		Helps:   "take more dumps: a longer run or a shorter interval; a smaller HEAPWIRE_SAMPLE_BYTES makes each of them surer",
		Numbers: []Number{{"growth", float64(g.Bytes())}, {"growth_error", math.Round(g.Sigma)}, {"growth_per_second", g.PerSecond}, {"held", float64(g.Last)}, {"share", g.Share}, {"dumps", float64(s.dumps)}},
	}
}

func (s *Series) plateau(g Growth) Verdict {
	return Verdict{
		Kind: Plateau, Bytes: g.Bytes(), Key: g.Key, Stack: g.Named, Confidence: g.Confidence,
		Says: fmt.Sprintf("%s grew by %s over %d dumps and has stopped, or nearly: it holds %s, %.0f%% of the live heap",
			g.Place(), stack.Size(g.Bytes()), s.dumps, stack.Size(g.Last), 100*g.Share),
		Helps:   "nothing, if this is a cache that is full or a model that is loaded; lower its bound if it is too large",
		Numbers: []Number{{"growth", float64(g.Bytes())}, {"growth_error", math.Round(g.Sigma)}, {"held", float64(g.Last)}, {"share", g.Share}, {"dumps", float64(s.dumps)}},
	}
}

// spike looks for a peak that a few dumps show, and neither the first nor the last.
func (p Process) spike() (Verdict, bool) {
	s := p.Series
	first, last, peak := s.first.Live.Bytes, s.last.Live.Bytes, s.peak
	base := max(first, last)
	above := peak.Live - base
	if s.dumps < minDumps || peak.Dump == 0 || peak.Dump == s.dumps-1 || above < leastPeak || float64(above) < bigShare*float64(peak.Live) ||
		deviations(float64(above), s.sigma(&s.live, float64(peak.Live), float64(base))) < standsOut {
		return Verdict{}, false
	}
	high := 0
	for i := range s.spans {
		if s.high[i] > base+above/2 {
			high++
		}
	}
	if high > max(1, len(s.spans)/4) {
		return Verdict{}, false
	}
	v := Verdict{
		Kind: Spike, Bytes: above, Confidence: 1,
		Helps:   "make it smaller, or make it in parts: the limit must hold the peak, not the mean",
		Numbers: []Number{{"peak", float64(peak.Live)}, {"above", float64(above)}, {"dump", float64(peak.Dump + 1)}, {"dumps", float64(s.dumps)}},
	}
	when := fmt.Sprintf("dump %d of %d", peak.Dump+1, s.dumps)
	if peak.Reason != "" && peak.Reason != "interval" {
		when += ", set off by " + peak.Reason
	}
	if peak.Step >= 0 {
		when += fmt.Sprintf(", at step %d", peak.Step)
		v.Numbers = append(v.Numbers, Number{"step", float64(peak.Step)})
	}
	v.Says = fmt.Sprintf("%s were live for a while (%s), %s more than before and after", stack.Size(peak.Live), when, stack.Size(above))
	if len(peak.Top) > 0 {
		if named, ok := p.Names[peak.Top[0]]; ok {
			v.Key, v.Stack = peak.Top[0], named
			v.Says += "; most of it at " + named.Place()
		}
	}
	return v, true
}

// retention compares what the allocator has resident with what the program has from it.
func (p Process) retention() (Verdict, bool) {
	s := p.Series
	resident, ok := p.figure("part_allocator", "resident")
	allocated, ok2 := s.Figure("allocated")
	if !ok || !ok2 {
		return Verdict{}, false
	}
	gap := resident.Last - allocated.Last
	metadata, _ := s.Figure("metadata")
	gap -= metadata.Last
	grown := resident.Growth() - allocated.Growth()
	if _, ok := s.Figure("part_allocator"); !ok && grown < leastFigure {
		// jemalloc takes pages that it got from the kernel, and nobody has touched, for resident: its level means little.
		return Verdict{}, false
	}
	if gap < leastFigure || float64(gap) < bigShare*float64(resident.Last) {
		return Verdict{}, false
	}
	v := Verdict{
		Kind: Retention, Bytes: gap, Confidence: 1,
		Numbers: []Number{{"resident", float64(resident.Last)}, {"allocated", float64(allocated.Last)}, {"retention", float64(gap)}},
		Helps:   "free in the order of allocation, or keep what lives long apart from what does not; a smaller dirty_decay_ms in MALLOC_CONF returns freed pages sooner",
	}
	course := ""
	if was := resident.First - allocated.First; s.dumps > 1 {
		course = fmt.Sprintf(" (%s in the first dump)", stack.Size(max(was-metadata.First, 0)))
	}
	v.Says = fmt.Sprintf("not a leak: the program has %s from the allocator, which has %s resident: %s of it are kept%s",
		stack.Size(allocated.Last), stack.Size(resident.Last), stack.Size(gap), course)
	if active, ok := s.Figure("active"); ok {
		holes := max(active.Last-allocated.Last, 0)
		free := max(resident.Last-active.Last-metadata.Last, 0)
		v.Numbers = append(v.Numbers, Number{"returnable", float64(free)}, Number{"pinned", float64(holes)})
		v.Says += fmt.Sprintf("; trimming would return %s, %s are holes in pages that living blocks pin", stack.Size(free), stack.Size(holes))
	}
	return v, true
}

// copyOnWrite looks for a forked process whose own pages become more while neither its heap nor its resident memory does.
func (p Process) copyOnWrite() (Verdict, bool) {
	s := p.Series
	inherited, forked := s.Figure("inherited_bytes")
	own, ok := s.Figure("private_dirty")
	what := "private"
	if !ok {
		own, ok = s.Figure("pss")
		what = "its own by share"
	}
	rss, ok2 := s.Figure("rss")
	if !forked || !ok || !ok2 || s.dumps < 2 {
		return Verdict{}, false
	}
	allocated, _ := s.Figure("allocated")
	heap := max(allocated.Growth(), s.last.Live.Bytes-s.first.Live.Bytes, 0)
	made := own.Growth() - max(rss.Growth(), heap, 0)
	if made < leastPeak || float64(made) < 0.5*float64(own.Growth()) {
		return Verdict{}, false
	}
	return Verdict{
		Kind: CopyOnWrite, Bytes: made, Confidence: 1,
		Says: fmt.Sprintf("a forked process made %s of inherited pages its own (%s grew by %s) while its heap grew by %s and its resident memory by %s; it inherited %s and holds %s of its own",
			stack.Size(made), what, stack.Size(own.Growth()), stack.Size(heap), stack.Size(max(rss.Growth(), 0)), stack.Size(inherited.Last), stack.Size(s.last.Live.Bytes)),
		Helps: "in Python each look at an object writes its reference count: call gc.freeze() before forking, hold the data in arrays instead of objects, or start workers by spawn",
		Numbers: []Number{
			{"copied", float64(made)}, {"private_growth", float64(own.Growth())}, {"heap_growth", float64(heap)},
			{"resident_growth", float64(rss.Growth())}, {"inherited", float64(inherited.Last)}, {"own", float64(s.last.Live.Bytes)},
		},
	}, true
}

// outside splits what is resident and not malloc's.
func (p Process) outside() []Verdict {
	s := p.Series
	rss, ok := s.Figure("rss")
	if !ok {
		return nil
	}
	var out []Verdict
	big := func(n int64) bool { return n >= leastFigure && float64(n) >= bigShare*float64(rss.Last) }
	if rest, ok := p.anonymous(); ok && big(rest.Last) {
		out = append(out, Verdict{
			Kind: OutsideMalloc, Bytes: rest.Last, Confidence: 1,
			Says: fmt.Sprintf("not from malloc: %s of private anonymous memory (%s in the first dump) of %s resident; malloc's allocator has %s, files %s, shared memory %s",
				stack.Size(rest.Last), stack.Size(rest.First), stack.Size(rss.Last), p.size("part_allocator", "resident"), p.size("part_files", "file"), p.size("part_shared", "shmem")),
			Helps:   "look for mmap without a file, for libraries with an allocator of their own (pyarrow, mimalloc, a private jemalloc), for pinned memory of a device's driver",
			Numbers: []Number{{"anonymous", float64(rest.Last)}, {"anonymous_growth", float64(rest.Growth())}, {"rss", float64(rss.Last)}},
		})
	}
	if shm, ok := p.figure("part_shared", "shmem"); ok && big(shm.Last) {
		out = append(out, Verdict{
			Kind: OutsideMalloc, Bytes: shm.Last, Confidence: 1,
			Says:    fmt.Sprintf("not from malloc: %s of shared memory (%s in the first dump) of %s resident", stack.Size(shm.Last), stack.Size(shm.First), stack.Size(rss.Last)),
			Helps:   "look at /dev/shm, multiprocessing.shared_memory, tensors handed between workers, and who unlinks them; it counts once for all processes that map it",
			Numbers: []Number{{"shared", float64(shm.Last)}, {"shared_growth", float64(shm.Growth())}, {"rss", float64(rss.Last)}},
		})
	}
	if file, ok := p.figure("part_files", "file"); ok && big(file.Growth()) {
		out = append(out, Verdict{
			Kind: OutsideMalloc, Bytes: file.Growth(), Confidence: 1,
			Says:    fmt.Sprintf("not from malloc: %s of mapped file pages, %s more than in the first dump, of %s resident", stack.Size(file.Last), stack.Size(file.Growth()), stack.Size(rss.Last)),
			Helps:   "nothing, mostly: the kernel drops file pages when memory is tight; they are in memory.current until then",
			Numbers: []Number{{"file", float64(file.Last)}, {"file_growth", float64(file.Growth())}, {"rss", float64(rss.Last)}},
		})
	}
	return out
}

// figure is the first of several figures that the dumps have, the best one first.
func (p Process) figure(keys ...string) (Range, bool) {
	for _, key := range keys {
		if r, ok := p.Series.Figure(key); ok {
			return r, true
		}
	}
	return Range{}, false
}

// anonymous is the anonymous memory that is no allocator's, Python's arena's nor a stack: what the shim counted, page by page.
// It does not count at each dump; in between, the allocator has what it had and what has become active since. Without any
// count, it is what jemalloc itself takes for resident.
func (p Process) anonymous() (Range, bool) {
	s := p.Series
	if other, ok := s.Figure("part_other"); ok {
		heap, _ := s.Figure("part_heap")
		return Range{First: other.First + heap.First, Last: other.Last + heap.Last}, true
	}
	anon, ok := s.Figure("anon")
	if own, counted := s.known("part_allocator"); ok && counted {
		other, _ := s.known("part_other")
		arenas, _ := s.known("part_python_arenas")
		stacks, _ := s.known("part_stacks")
		active, _ := s.Figure("active")
		return Range{First: other.First, Last: max(anon.Last-own.Last-max(active.Last-s.active, 0)-arenas.Last-stacks.Last, 0)}, true
	}
	resident, ok2 := s.Figure("resident")
	return Range{First: max(anon.First-resident.First, 0), Last: max(anon.Last-resident.Last, 0)}, ok && ok2
}

func (p Process) size(figures ...string) string {
	r, ok := p.figure(figures...)
	if !ok {
		return "an unknown part"
	}
	return stack.Size(r.Last)
}

// Slope tells how fast a stack grows, in the units that are known.
func (g Growth) Slope() string {
	var parts []string
	if g.PerSecond != 0 {
		parts = append(parts, speed(g.PerSecond, 1.96*g.PerSecondError))
	}
	if g.PerStep != 0 {
		parts = append(parts, stack.Size(int64(g.PerStep))+" a step")
	}
	if len(parts) == 0 && g.PerDump != 0 {
		parts = append(parts, stack.Size(int64(g.PerDump))+" a dump")
	}
	return strings.Join(parts, ", ")
}

// speed picks the unit of time in which a slope is at least a MiB, with its limits at 95 %.
func speed(perSecond, limits float64) string {
	for _, unit := range []struct {
		name string
		d    time.Duration
	}{{"second", time.Second}, {"minute", time.Minute}, {"hour", time.Hour}} {
		if v := perSecond * unit.d.Seconds(); math.Abs(v) >= 1<<20 || unit.d == time.Hour {
			return fmt.Sprintf("%s ± %s a %s", stack.Size(int64(v)), stack.Size(int64(limits*unit.d.Seconds())), unit.name)
		}
	}
	return ""
}

// Percent is a probability as a person reads it: never 100.
func Percent(p float64) string {
	switch {
	case p >= 1:
		return ">99.99%"
	case p > 0.9999:
		return ">99.99%"
	case p > 0.99:
		return fmt.Sprintf("%.2f%%", math.Floor(p*1e4)/100)
	}
	return fmt.Sprintf("%.0f%%", 100*p)
}
