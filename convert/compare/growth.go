// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"cmp"
	"math"
	"slices"
)

// Shape says how a stack's bytes went over a series of dumps.
type Shape string

const (
	Growing   Shape = "growing"        // rises in both halves, and its lows rise with it
	Grew      Shape = "grew"           // rose in both halves; whether it goes on is within the sampling error
	LevelsOff Shape = "levels off"     // rose, and has stopped, or nearly
	Jump      Shape = "jump"           // rose in the last dumps only: nobody can tell yet what it is going to do
	UpAndDown Shape = "comes and goes" // its lows do not rise
	Unsure    Shape = "within error"   // the rise is within the sampling error
	TooFew    Shape = "two dumps"      // what it does between them is not known
	OneDump   Shape = "one dump"       // all it holds has come since the process's start
	Shrinking Shape = "shrinks"        // holds less than at first
	Steady    Shape = "steady"         // holds what it held
)

const (
	// minDumps is how many dumps it takes to tell growing from having grown.
	minDumps = 3
	// standsOut is how many standard errors a change takes to be told as one in a table: by chance once in 700 stacks.
	standsOut = 3
	// slowed is the share of its rate at which what still grows is said to level off.
	slowed = 0.5
	// tail is the part of the time, its last, whose rate that is.
	tail = 3
	// doubt is how many standard errors a rank takes off the growth.
	doubt = 2
	// begun is the share of its growth that a stack may have had before it is said to begin.
	begun = 0.1
	// convinced is how many standard errors the later half of growth must be above what the earlier one would have come to had it
	// slowed down, for it to be said to go on, and leaning the same of its end, which is less.
	convinced = 1.3
	leaning   = 0.8
	// few points leave it in the dark how straight their line is; all growth must be strong standard errors then.
	few    = 5
	strong = 7
	// care is what a rise may be off its line by, in errors that the line tells, for it not to have stopped.
	care = 1.5
	// straight is the least share that growth has in all movement up and down of the lows.
	straight = 0.5
)

// Growth is a stack and how it went from a process's first dump to its last, or from its start if it made only one.
type Growth struct {
	Key uint64
	Named
	First, Last, Most int64 // bytes held
	Objects           int64 // held last
	// Steady is the part of the growth that goes on: twice the slower half of it, by the lows. What came at once, what comes
	// and goes, and what has stopped have little of it or none.
	Steady int64
	// sure is what is left of Steady when the sampling error is against it. Rows are ranked by it.
	sure float64
	// Sigma is the standard error of Last-First, from sampling alone.
	Sigma float64
	// Confidence is the probability that it has grown, given the sampling error.
	Confidence float64
	// PerSecond is the slope of a straight line through all dumps, with its standard error, from sampling and from how far
	// the dumps lie from the line; PerDump the same by dump, PerStep by training step; 0 where that is not known.
	PerSecond, PerSecondError float64
	PerDump, PerStep          float64
	// FirstSeen is the first dump that has the stack, 0 for the first of all; Since the dump from whose span on it grows.
	FirstSeen, Since int
	// Share is Last / live bytes of the last dump.
	Share float64
	Shape Shape
}

// Bytes is what it grew by.
func (g Growth) Bytes() int64 { return g.Last - g.First }

// Growth gives the stacks of the series that grew, the steadiest first. Stacks without a name are left out.
func (s *Series) Growth(names map[uint64]Named) []Growth {
	var grown []Growth
	for key, t := range s.tracks {
		g := s.judge(t)
		if g.Bytes() <= 0 && s.dumps > 1 {
			continue
		}
		named, ok := names[key]
		if !ok {
			continue
		}
		g.Key, g.Named = key, named
		grown = append(grown, g)
	}
	Rank(grown)
	return grown
}

// Total judges all live bytes as one stack.
func (s *Series) Total() Growth { return s.judge(&s.live) }

// Settled tells whether a row tells of growth, and not of what comes and goes or is within the error.
func (g Growth) Settled() bool {
	switch g.Shape {
	case Growing, Grew, LevelsOff, Jump, TooFew, OneDump:
		return true
	}
	return false
}

// Rank sorts by steady growth, as much of it as is sure, then by growth.
func Rank(grown []Growth) { slices.SortFunc(grown, ByRank) }

// ByRank orders rows as Rank does.
func ByRank(a, b Growth) int {
	if by := cmp.Or(cmp.Compare(b.sure, a.sure), cmp.Compare(b.Bytes(), a.Bytes())); by != 0 {
		return by
	}
	// The texts are made for the comparison, which takes longer than all before it.
	return cmp.Or(cmp.Compare(a.String(), b.String()), cmp.Compare(a.Key, b.Key))
}

// judge tells a track's course.
func (s *Series) judge(t *track) Growth {
	g := Growth{First: t.first.Bytes, Last: t.last.Bytes, Most: t.most, Objects: t.last.Objects, FirstSeen: t.seen}
	if s.last.Live.Bytes > 0 {
		g.Share = float64(g.Last) / float64(s.last.Live.Bytes)
	}
	if s.dumps == 1 {
		// All it holds has come since the process's start.
		g.First, g.Steady, g.sure = 0, g.Last, float64(g.Last)
	}
	g.Sigma = s.sigma(t, float64(g.First), float64(g.Last))
	z := deviations(float64(g.Bytes()), g.Sigma)
	g.Confidence = confidence(z)
	s.slope(t, &g)
	g.Shape = s.shape(t, &g, z)
	if s.dumps > 1 && float64(g.Steady) < worthShare*float64(s.last.Live.Bytes) {
		g.sure = 0 // a trickle does not rank above what came at once and is large
	}
	return g
}

// sigma is the standard error of the difference of two estimates of the same stack.
func (s *Series) sigma(t *track, a, b float64) float64 {
	return math.Hypot(s.errorOf(t, a), s.errorOf(t, b))
}

// errorOf is that of an estimate of a stack.
func (s *Series) errorOf(t *track, bytes float64) float64 {
	size := 0.0 // of an object
	switch {
	case t.last.Objects > 0:
		size = float64(t.last.Bytes) / float64(t.last.Objects)
	case t.first.Objects > 0:
		size = float64(t.first.Bytes) / float64(t.first.Objects)
	}
	objects := 0.0
	if size > 0 {
		objects = bytes / size
	}
	return math.Sqrt(variance(bytes, objects, max(s.first.Rate, s.last.Rate)))
}

// slope fits a straight line.
func (s *Series) slope(t *track, g *Growth) {
	if s.dumps < 2 {
		return
	}
	n := float64(s.dumps)
	g.PerDump = float64(g.Bytes()) / (n - 1)
	if steps := s.last.Step - s.first.Step; s.first.Step >= 0 && steps > 0 {
		g.PerStep = float64(g.Bytes()) / float64(steps)
	}
	spread := s.squares - s.times*s.times/n
	if d := s.Duration().Seconds(); d > 0 && spread > 0 {
		product := t.timed - s.times*t.sum/n
		g.PerSecond = product / spread
		square := math.Pow(g.Sigma/d, 2)
		if s.dumps >= minDumps {
			left := max(t.square-t.sum*t.sum/n-g.PerSecond*product, 0)
			square += left / (n - 2) / spread
		}
		g.PerSecondError = math.Sqrt(square)
	}
}

// shape judges by the lows, which what comes and goes does not lift.
func (s *Series) shape(t *track, g *Growth, z float64) Shape {
	if s.dumps == 1 {
		return OneDump
	}
	if s.dumps < minDumps {
		if s.dumps == 2 {
			g.Steady = max(g.Bytes(), 0)
			g.sure = max(float64(g.Bytes())-doubt*g.Sigma, 0)
		}
		switch {
		case z >= standsOut:
			return TooFew
		case z <= -standsOut:
			return Shrinking
		}
		return Unsure
	}
	points := s.points(t)
	last := len(points) - 1
	low := func(i int) float64 { return points[i].low }
	total := low(last) - low(0)
	z = min(z, deviations(total, s.sigma(t, low(0), low(last))))
	if z < standsOut {
		ends := max(low(0), low(last))
		switch {
		case deviations(float64(t.most)-ends, s.sigma(t, float64(t.most), ends)) >= standsOut+doubt: // the largest of many
			return UpAndDown
		case z <= -standsOut:
			return Shrinking
		case g.Bytes() > 0 && z > 1:
			return Unsure
		}
		return Steady
	}
	from, before := 0, 0.0
	for i := 1; i < last; i++ {
		if low(i)-low(0) <= begun*total {
			from = i
			before = slices.MaxFunc(points[:i], func(a, b point) int { return cmp.Compare(a.low, b.low) }).low
		}
	}
	g.Since = points[from].dump
	if before-low(from) > straight*total || total < straight*moved(points[from:]) {
		return UpAndDown
	}
	if last-from < 2 {
		return Jump
	}
	rise := func(from, to int) change {
		return change{bytes: low(to) - low(from), sigma: s.sigma(t, low(from), low(to)), time: part(points, from, to)}
	}
	half := from + (last-from)/2
	early, late := rise(from, half), rise(half, last)
	g.Steady = int64(max(0, min(total, early.bytes/early.time, late.bytes/late.time)))
	g.sure = max(0, min(total, (early.bytes-doubt*early.sigma)/early.time, (late.bytes-doubt*late.sigma)/late.time))
	latest := last - max(1, (last-from)/tail)
	mean := total / part(points, from, last)
	off := straightness(points[from:])
	// By time or one after the other, as in straightness: programs are not clocks.
	on := func(at int, errors float64) bool {
		before, after := rise(from, at), rise(at, last)
		return s.goesOn(t, before, after, after.time/before.time, off, errors) || s.goesOn(t, before, after, float64(last-at)/float64(at-from), off, errors)
	}
	stopped := func(r change) bool { return (r.bytes+min(r.sigma, care*off))/r.time < slowed*mean }
	sure := last-from >= few || deviations(total, s.sigma(t, low(from), low(last))) >= strong
	switch {
	case sure && on(half, convinced) && on(latest, leaning):
		return Growing
	case stopped(late) || stopped(rise(latest, last)):
		return LevelsOff
	}
	return Grew
}

// goesOn tells whether growth has not slowed down, by so many standard errors, if after lasted so much longer than before. Of objects that stay each is drawn once, so that what came
// before and what came after have errors of their own; how far the points lie from a line tells of more, where it can.
func (s *Series) goesOn(t *track, before, after change, longer, off, errors float64) bool {
	share := slowed * longer
	sigma := math.Hypot(s.errorOf(t, after.bytes), share*s.errorOf(t, before.bytes))
	if !math.IsInf(off, 1) {
		sigma = max(sigma, min(off, math.Hypot(after.sigma, share*before.sigma)))
	}
	return after.bytes-share*before.bytes >= errors*sigma
}

// point is a span as shape sees it.
type point struct {
	low  float64
	at   float64 // seconds since the first dump, of the last dump in it
	dump int     // the number of that dump
}

// points gives the lows of a stack. A span that is not whole may not have had its low yet, and a dump that follows another at
// once, as those do that something set off, shows no growth of its own: both go with the span before.
func (s *Series) points(t *track) []point {
	const atOnce = 0.2 // of the mean distance
	n := len(s.spans)
	if n > minDumps && s.last.Reason == leaving && s.spans[n-1].dumps == 1 {
		n-- // when it leaves a process has done its work: that nothing grows any more means nothing
	}
	apart := s.spans[n-1].end / float64(n-1) * atOnce
	var out []point
	dump := -1
	for i, sp := range s.spans[:n] {
		dump += sp.dumps
		p := point{low: float64(t.floor[i]), at: sp.end, dump: dump}
		if k := len(out) - 1; k > 0 && (sp.setOff && p.at-out[k].at < apart || i == n-1 && sp.dumps < s.width) {
			if p.low < out[k].low {
				out[k] = p
			}
			continue
		}
		out = append(out, p)
	}
	return out
}

// change is by how much the lows rose from one point to a later one.
type change struct {
	bytes, sigma float64
	time         float64 // share of all the time
}

// straightness is the error of a rise between two points by how far points lie from a straight line, over time or one after the
// other. The error that sampling leaves supposes that each dump was drawn anew; of objects that stay, which leaked ones do, each
// is drawn once, and the line is straighter than that. Three points are too few to tell.
func straightness(points []point) float64 {
	const least = 4
	n := float64(len(points))
	if len(points) < least {
		return math.Inf(1)
	}
	fit := func(x func(i int) float64) float64 {
		var sx, sy, sxx, sxy, syy float64
		for i, p := range points {
			sx, sy = sx+x(i), sy+p.low
			sxx, sxy, syy = sxx+x(i)*x(i), sxy+x(i)*p.low, syy+p.low*p.low
		}
		dxx, dxy, dyy := sxx-sx*sx/n, sxy-sx*sy/n, syy-sy*sy/n
		if dxx <= 0 {
			return math.Inf(1)
		}
		return math.Sqrt(max(dyy-dxy*dxy/dxx, 0) / (n - 2))
	}
	off := min(fit(func(i int) float64 { return points[i].at }), fit(func(i int) float64 { return float64(i) }))
	return math.Sqrt2 * off
}

// moved is all movement up and down.
func moved(points []point) float64 {
	sum := 0.0
	for i := 1; i < len(points); i++ {
		sum += math.Abs(points[i].low - points[i-1].low)
	}
	return sum
}

// part is the share of the time from one point to another. It is near to their share in number: programs are not clocks.
func part(points []point, from, to int) float64 {
	number := float64(to-from) / float64(len(points)-1)
	whole := points[len(points)-1].at
	if whole <= 0 {
		return number
	}
	return max(number/1.5, min(number*1.5, (points[to].at-points[from].at)/whole))
}

// Merged is a stack's growth in all processes that have it.
type Merged struct {
	Growth  // summed; the shape is that of the part that is steadiest
	Parts   []Part
	Differs []Part // those that grew by something else than most, see [Merge]
}

// Part is a process's share in it.
type Part struct {
	Process string
	Growth
}

// Merge adds up the growth of several processes by stack, the steadiest first. A part differs if its growth is off the median
// of all processes by more than the sampling error explains, and by more than a quarter of the largest; processes that do not
// have the stack count with 0.
func Merge(parts map[string][]Growth) []Merged {
	byKey := map[uint64]*Merged{}
	var order []*Merged
	processes := make([]string, 0, len(parts))
	for process := range parts {
		processes = append(processes, process)
	}
	slices.Sort(processes)
	for _, process := range processes {
		for _, g := range parts[process] {
			m := byKey[g.Key]
			if m == nil {
				m = &Merged{Growth: Growth{Key: g.Key, Named: g.Named, FirstSeen: g.FirstSeen, Shape: g.Shape}}
				byKey[g.Key] = m
				order = append(order, m)
			}
			m.Parts = append(m.Parts, Part{process, g})
			m.First += g.First
			m.Last += g.Last
			m.Most += g.Most
			m.Objects += g.Objects
			m.Steady += g.Steady
			m.sure += g.sure
			m.Sigma = math.Hypot(m.Sigma, g.Sigma)
			m.PerSecond += g.PerSecond
			m.PerSecondError = math.Hypot(m.PerSecondError, g.PerSecondError)
			m.PerDump += g.PerDump
			m.PerStep += g.PerStep
			m.FirstSeen = min(m.FirstSeen, g.FirstSeen)
		}
	}
	out := make([]Merged, 0, len(order))
	for _, m := range order {
		slices.SortStableFunc(m.Parts, func(a, b Part) int {
			return ByRank(a.Growth, b.Growth)
		})
		m.Shape, m.Since = m.Parts[0].Shape, m.Parts[0].Since
		m.Confidence = confidence(deviations(float64(m.Bytes()), m.Sigma))
		m.differing(len(processes))
		out = append(out, *m)
	}
	slices.SortStableFunc(out, func(a, b Merged) int { return ByRank(a.Growth, b.Growth) })
	return out
}

func (m *Merged) differing(processes int) {
	if processes < 2 {
		return
	}
	grown := make([]int64, processes)
	var largest int64
	for i, p := range m.Parts {
		grown[i] = p.Bytes()
		largest = max(largest, grown[i])
	}
	slices.Sort(grown)
	median := grown[(processes-1)/2]
	for _, p := range m.Parts {
		off := float64(p.Bytes() - median)
		if p.Shape == OneDump {
			continue // how much of it grew is not known
		}
		if deviations(math.Abs(off), p.Sigma) >= standsOut && math.Abs(off) > float64(largest)/4 {
			m.Differs = append(m.Differs, p)
		}
	}
}
