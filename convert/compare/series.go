// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"slices"
	"time"
)

// maxSpans bounds the spans of time for which the least that a stack held is remembered, beside the first dump.
const maxSpans = 16

const (
	// counted is a figure of dumps whose resident memory was split into parts, page by page.
	counted = "part_sum"
	// leaving is the reason of a process's last dump.
	leaving = "exit"
)

// triggers are the reasons of dumps that come when memory does, not when the clock or the program says so.
var triggers = []string{"pressure", "jump", "giant"}

// Series remembers the dumps of one process: of each stack what it held first and last, the sums that make its slope, and the
// least it held in each of some spans of time, however many dumps there are. What comes and goes has a low in every span; what
// leaks has none.
type Series struct {
	dumps       int
	first, last Snapshot // without Stacks and Names
	times       float64  // sums over all dumps of the time since the first, in seconds, and of its square
	squares     float64
	spans       []span // the first is the first dump alone
	width       int    // dumps in a whole span
	live        track
	high        [maxSpans + 1]int64 // the most that was live, by span
	tracks      map[uint64]*track
	figures     map[string]Range
	peak        Peak
	active      int64 // of the allocator, at the last dump whose pages were counted
}

// span is some dumps that follow each other.
type span struct {
	dumps  int
	end    float64 // time of the last of them
	setOff bool    // one dump, which something set off before its time
}

// track is what is remembered of a stack.
type track struct {
	seen        int // the first dump that has it
	first, last Held
	sum, timed  float64 // of the bytes, and of bytes times time
	square      float64
	most        int64
	floor       [maxSpans + 1]int64 // the least in each span
}

// Range is a figure of HEAPWIRE_META over a series.
type Range struct{ First, Last, Least, Most int64 }

// Growth is what it rose by from the first dump to the last.
func (r Range) Growth() int64 { return r.Last - r.First }

// Peak is the dump of a series that held most.
type Peak struct {
	Dump   int // 0 for the first
	Seq    uint64
	Reason string
	Time   time.Time
	Step   int64 // -1 if not known
	Live   int64
	// Top are the stacks that held most more than in the first dump, by what they held.
	Top []uint64
}

// Dumps is how many dumps the series has.
func (s *Series) Dumps() int { return s.dumps }

// Ends are the first dump and the last, without their stacks.
func (s *Series) Ends() (first, last Snapshot) { return s.first, s.last }

// Peak is the dump that held most.
func (s *Series) Peak() Peak { return s.peak }

// Figure is a figure's course, if the last dump has it.
func (s *Series) Figure(key string) (Range, bool) {
	if _, ok := s.last.Figures[key]; !ok {
		return Range{}, false
	}
	r, ok := s.figures[key]
	return r, ok
}

// known is a figure's course over the dumps that have it, the last one or not.
func (s *Series) known(key string) (Range, bool) {
	r, ok := s.figures[key]
	return r, ok
}

// Knows tells whether the series remembers a stack, by its key.
func (s *Series) Knows(key uint64) bool {
	return s.tracks[key] != nil || slices.Contains(s.peak.Top, key)
}

// Duration is the time from the first dump to the last; 0 if the dumps do not tell.
func (s *Series) Duration() time.Duration {
	if s.first.Time.IsZero() || s.last.Time.IsZero() {
		return 0
	}
	return s.last.Time.Sub(s.first.Time)
}

// Add takes the next dump. Dumps come in the order in which they were taken.
func (s *Series) Add(next Snapshot) {
	if _, ok := next.Figures[counted]; !ok && next.Reason == leaving {
		if _, ok := s.last.Figures[counted]; ok {
			next.Figures = s.last.Figures // a process that leaves does not take the time to count its pages
		}
	}
	at := s.begin(&next)
	open := len(s.spans) - 1
	fresh := s.spans[open].dumps == 1
	s.live.add(next.Live, at, open, fresh, s.dumps-1)
	if fresh {
		s.high[open] = next.Live.Bytes
	}
	s.high[open] = max(s.high[open], next.Live.Bytes)
	for key, held := range next.Stacks {
		t := s.tracks[key]
		if t == nil {
			t = &track{seen: s.dumps - 1}
			if s.dumps == 1 {
				t.first = held
			}
			s.tracks[key] = t
		}
		t.add(held, at, open, fresh, s.dumps-1)
	}
	absent := 0
	for key, t := range s.tracks {
		if _, ok := next.Stacks[key]; !ok {
			t.last = Held{}
			t.floor[open] = 0
			absent++
		}
	}
	if absent > MaxStacks {
		for key := range s.tracks {
			if _, ok := next.Stacks[key]; !ok {
				delete(s.tracks, key)
			}
		}
	}
	if _, ok := next.Figures[counted]; ok {
		s.active = next.Figures["active"]
	}
	for key, v := range next.Figures {
		r, ok := s.figures[key]
		if !ok {
			r = Range{First: v, Least: v, Most: v}
		}
		r.Last, r.Least, r.Most = v, min(r.Least, v), max(r.Most, v)
		s.figures[key] = r
	}
	if s.dumps == 1 || next.Live.Bytes > s.peak.Live {
		s.peak = Peak{Dump: s.dumps - 1, Seq: next.Seq, Reason: next.Reason, Time: next.Time, Step: next.Step, Live: next.Live.Bytes, Top: s.risen(next)}
	}
}

// risen are the stacks that hold most more than in the first dump.
func (s *Series) risen(now Snapshot) []uint64 {
	const most = 3
	keys := make([]uint64, 0, len(now.Stacks))
	for key := range now.Stacks {
		keys = append(keys, key)
	}
	more := func(key uint64) int64 { return now.Stacks[key].Bytes - s.tracks[key].first.Bytes }
	slices.SortFunc(keys, func(a, b uint64) int {
		if more(a) != more(b) {
			if more(a) > more(b) {
				return -1
			}
			return 1
		}
		if a < b {
			return -1
		}
		return 1
	})
	return slices.Clone(keys[:min(len(keys), most)])
}

// begin counts a dump, opens a span for it or finds the one it goes into, and tells its time since the first dump.
func (s *Series) begin(next *Snapshot) float64 {
	lean := *next
	lean.Stacks, lean.Names = nil, nil
	s.dumps++
	s.last = lean
	if s.dumps == 1 {
		s.first, s.width = lean, 1
		s.tracks, s.figures = map[uint64]*track{}, map[string]Range{}
		s.live.first = next.Live
		s.spans = []span{{dumps: 1}}
		return 0
	}
	at := s.Duration().Seconds()
	s.times += at
	s.squares += at * at
	if n := len(s.spans); n > 1 && s.spans[n-1].dumps < s.width {
		s.spans[n-1].dumps++
		s.spans[n-1].end, s.spans[n-1].setOff = at, false
		return at
	}
	if len(s.spans) == maxSpans+1 {
		s.halve()
	}
	s.spans = append(s.spans, span{dumps: 1, end: at, setOff: slices.Contains(triggers, next.Reason)})
	return at
}

// halve joins each two spans after the first dump.
func (s *Series) halve() {
	s.width *= 2
	joined := s.spans[:1]
	for i := 1; i+1 < len(s.spans); i += 2 {
		joined = append(joined, span{dumps: s.spans[i].dumps + s.spans[i+1].dumps, end: s.spans[i+1].end})
	}
	s.spans = joined
	lower := func(f *[maxSpans + 1]int64, of func(...int64) int64) {
		for i := 1; i <= maxSpans/2; i++ {
			f[i] = of(f[2*i-1], f[2*i])
		}
		clear(f[maxSpans/2+1:])
	}
	lower(&s.live.floor, least)
	lower(&s.high, most)
	for _, t := range s.tracks {
		lower(&t.floor, least)
	}
}

func least(v ...int64) int64 { return slices.Min(v) }
func most(v ...int64) int64  { return slices.Max(v) }

func (t *track) add(held Held, at float64, span int, fresh bool, dump int) {
	v := float64(held.Bytes)
	t.last = held
	t.sum += v
	t.timed += v * at
	t.square += v * v
	t.most = max(t.most, held.Bytes)
	switch {
	case fresh:
		t.floor[span] = held.Bytes
	case t.seen != dump: // what was not there in an earlier dump of the span held nothing then
		t.floor[span] = min(t.floor[span], held.Bytes)
	}
}
