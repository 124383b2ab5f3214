// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/stack"
)

// Change says what became of a line from one side of a comparison to the other.
type Change string

const (
	New    Change = "new"
	Gone   Change = "gone"
	Grown  Change = "grown"
	Shrunk Change = "shrunk"
	Same   Change = "same" // within the sampling error
)

// leastChange keeps what nobody cares about out of the rows that are told as changed.
const leastChange = 64 << 10

// Side is one side of a comparison: any number of snapshots of any number of processes, averaged.
type Side struct {
	Name      string
	Snapshots int
	rate      float64
	bytes     float64 // sums over all snapshots
	objects   float64
	functions map[functionKey]*function
	stacks    map[string]*folded
}

type functionKey struct{ name, file string }

// function is what is charged to its lines.
type function struct {
	python bool
	lines  map[[2]int64]*line // by line, and by its distance from the function's header where that is known
}

// line is what is charged to a line.
type line struct {
	number, start  int64
	bytes, objects float64
	callers        []stack.Frame // of the largest stack
	most           float64
}

// folded is a stack without lines: function and file of each frame, leaf first.
type folded struct {
	frames []functionKey
	bytes  float64
}

// Add adds profiles up: p is the sum of so many snapshots. What is live is compared: profiles without inuse_space count as
// empty.
func (s *Side) Add(p *profile.Profile, snapshots int) {
	if s.functions == nil {
		s.functions, s.stacks = map[functionKey]*function{}, map[string]*folded{}
	}
	s.Snapshots += snapshots
	s.rate = max(s.rate, Rate(p))
	for _, row := range stack.Stacks(p, "inuse_space", 0) {
		v, n := float64(row.Value), float64(row.Objects)
		s.bytes += v
		s.objects += n
		at := stack.Frame{Function: stack.NoStack}
		if len(row.Frames) > 0 {
			at = row.Frames[row.Charged]
		}
		key := functionKey{at.Function, canonical(at)}
		f := s.functions[key]
		if f == nil {
			f = &function{python: at.Python, lines: map[[2]int64]*line{}}
			s.functions[key] = f
		}
		number := at.Line
		if !at.Python {
			number = 0 // of another build, lines of native code mean nothing
		}
		l := f.lines[[2]int64{number, at.Start}]
		if l == nil {
			l = &line{number: number, start: at.Start}
			f.lines[[2]int64{number, at.Start}] = l
		}
		l.bytes += v
		l.objects += n
		if v > l.most && len(row.Frames) > 0 {
			l.most = v
			callers := row.Frames[row.Charged+1:]
			l.callers = slices.Clone(callers[:min(len(callers), maxFrames)])
		}
		s.fold(row, v)
	}
}

func (s *Side) fold(row stack.StackRow, v float64) {
	frames := make([]functionKey, 0, len(row.Frames))
	var b strings.Builder
	for _, f := range row.Frames {
		k := functionKey{f.Function, canonical(f)}
		frames = append(frames, k)
		b.WriteString(k.name + "\x00" + k.file + "\x00")
	}
	st := s.stacks[b.String()]
	if st == nil {
		st = &folded{frames: frames}
		s.stacks[b.String()] = st
	}
	st.bytes += v
}

// Live is the mean of what was live, in bytes.
func (s *Side) Live() float64 { return s.bytes / float64(max(s.Snapshots, 1)) }

// Row is a line of the program on both sides. Bytes and objects are those of the mean snapshot.
type Row struct {
	Function, File string // as the head has them, where it has them
	Python         bool
	// Line is the head's, BaseLine the base's; 0 if that side does not have it, or does not know. Lines moved by an edit above
	// them are the same line.
	Line, BaseLine           int64
	Base, Head               float64
	BaseObjects, HeadObjects float64
	// Sigma is the standard error of the difference. Each side counts as one snapshot: those of a process share most of their
	// samples.
	Sigma   float64
	Change  Change
	Callers []stack.Frame // of the largest stack
}

// Delta is what the head holds more.
func (r Row) Delta() float64 { return r.Head - r.Base }

// Frame is the line as one.
func (r Row) Frame() stack.Frame {
	line := r.Line
	if r.Change == Gone {
		line = r.BaseLine
	}
	return stack.Frame{Function: r.Function, File: r.File, Line: line, Python: r.Python}
}

// Comparison is what changed from base to head.
type Comparison struct {
	Base, Head *Side
	// Rows are ordered by how much they changed, those within the error last.
	Rows  []Row
	Sigma float64 // standard error of the difference of all live bytes
	// Renamed are files that are the same under another path, by their path in the base.
	Renamed map[string]string
}

// Delta is how much more the mean snapshot of the head holds.
func (c *Comparison) Delta() float64 { return c.Head.Live() - c.Base.Live() }

// Diff compares by function and file. A file is the same under another path if it lies in a Python environment, or if the end
// of its path and one of its functions say so; a line is the same if it is as far from the function's header as before.
func Diff(base, head *Side) *Comparison {
	c := &Comparison{Base: base, Head: head, Renamed: renames(base.functions, head.functions)}
	c.Sigma = math.Sqrt(base.variance(base.bytes, base.objects) + head.variance(head.bytes, head.objects))
	seen := map[functionKey]bool{}
	for key, b := range base.functions {
		to := c.headKey(key)
		h := head.functions[to]
		if h != nil {
			seen[to] = true
		}
		c.lines(key, to, b, h)
	}
	for key, h := range head.functions {
		if !seen[key] {
			c.lines(key, key, nil, h)
		}
	}
	slices.SortFunc(c.Rows, func(a, b Row) int {
		same := func(r Row) int {
			if r.Change == Same {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(same(a), same(b)), cmp.Compare(math.Abs(b.Delta()), math.Abs(a.Delta())),
			cmp.Compare(a.Function, b.Function), cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.BaseLine, b.BaseLine))
	})
	return c
}

func (c *Comparison) headKey(key functionKey) functionKey {
	if to, ok := c.Renamed[key.file]; ok {
		key.file = to
	}
	return key
}

// variance is that of a mean snapshot, by its sums.
func (s *Side) variance(bytes, objects float64) float64 {
	n := float64(max(s.Snapshots, 1))
	return variance(bytes/n, objects/n, s.rate)
}

// lines pairs the lines of a function: those equally far from its header, then those that are left, if they are as many, in
// their order. What cannot be paired is one line, so that nothing is new or gone that only moved.
func (c *Comparison) lines(baseKey, headKey functionKey, base, head *function) {
	key := headKey
	if head == nil {
		key = baseKey
	}
	type pair struct{ base, head *line }
	var pairs []pair
	b, h := base.ordered(), head.ordered()
	take := func(same func(x, y *line) bool) {
		for i, x := range b {
			if x == nil {
				continue
			}
			for k, y := range h {
				if y != nil && same(x, y) {
					pairs = append(pairs, pair{x, y})
					b[i], h[k] = nil, nil
					break
				}
			}
		}
	}
	take(func(x, y *line) bool {
		if x.start > 0 && y.start > 0 {
			return x.number-x.start == y.number-y.start
		}
		return x.number == y.number
	})
	b, h = slices.DeleteFunc(b, isNil), slices.DeleteFunc(h, isNil)
	switch {
	case len(b) == len(h):
		for i := range b {
			pairs = append(pairs, pair{b[i], h[i]})
		}
	case len(b) > 0 && len(h) > 0:
		pairs = append(pairs, pair{joined(b), joined(h)})
	default:
		for _, x := range b {
			pairs = append(pairs, pair{x, nil})
		}
		for _, y := range h {
			pairs = append(pairs, pair{nil, y})
		}
	}
	for _, p := range pairs {
		r := Row{Function: key.name, File: key.file}
		if p.base != nil {
			n := float64(max(c.Base.Snapshots, 1))
			r.Base, r.BaseObjects, r.BaseLine, r.Callers, r.Python = p.base.bytes/n, p.base.objects/n, p.base.number, p.base.callers, base.python
			r.Sigma += c.Base.variance(p.base.bytes, p.base.objects)
		}
		if p.head != nil {
			n := float64(max(c.Head.Snapshots, 1))
			r.Head, r.HeadObjects, r.Line, r.Callers, r.Python = p.head.bytes/n, p.head.objects/n, p.head.number, p.head.callers, head.python
			r.Sigma += c.Head.variance(p.head.bytes, p.head.objects)
		}
		r.Sigma = math.Sqrt(r.Sigma)
		r.Change = r.change()
		c.Rows = append(c.Rows, r)
	}
}

func isNil(l *line) bool { return l == nil }

func (f *function) ordered() []*line {
	if f == nil {
		return nil
	}
	var out []*line
	for _, l := range f.lines {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b *line) int { return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.start, b.start)) })
	return out
}

// joined adds lines up; it is called by the name of the largest.
func joined(lines []*line) *line {
	largest := slices.MaxFunc(lines, func(a, b *line) int { return cmp.Compare(a.bytes, b.bytes) })
	sum := *largest
	sum.bytes, sum.objects = 0, 0
	for _, l := range lines {
		sum.bytes += l.bytes
		sum.objects += l.objects
	}
	return &sum
}

func (r Row) change() Change {
	d := r.Delta()
	switch {
	case math.Abs(d) < leastChange, math.Abs(deviations(d, r.Sigma)) < standsOut:
		return Same
	case r.Base == 0:
		return New
	case r.Head == 0:
		return Gone
	case d > 0:
		return Grown
	}
	return Shrunk
}

// Stack is a stack of both sides without lines, leaf first.
type Stack struct {
	Frames     []stack.Frame // of these the functions and files
	Base, Head float64
}

// Stacks gives all stacks of both sides, by name.
func (c *Comparison) Stacks() []Stack {
	byName := map[string]*Stack{}
	add := func(side *Side, renamed bool, at func(*Stack) *float64) {
		for _, st := range side.stacks {
			frames, names := make([]stack.Frame, len(st.frames)), make([]string, len(st.frames))
			for i, f := range st.frames {
				if renamed {
					f = c.headKey(f)
				}
				frames[i] = stack.Frame{Function: f.name, File: f.file}
				names[i] = frames[i].String()
			}
			name := strings.Join(names, "\x00")
			if byName[name] == nil {
				byName[name] = &Stack{Frames: frames}
			}
			*at(byName[name]) += st.bytes / float64(max(side.Snapshots, 1))
		}
	}
	add(c.Base, true, func(s *Stack) *float64 { return &s.Base })
	add(c.Head, false, func(s *Stack) *float64 { return &s.Head })
	out := make([]Stack, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		out = append(out, *byName[name])
	}
	return out
}
