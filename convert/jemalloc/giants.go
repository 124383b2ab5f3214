// SPDX-License-Identifier: Apache-2.0

package jemalloc

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/stack"
)

// Giant is one very large request for memory, noted when it was made: before it was served or refused, and before a page
// of it was touched. It is an event and no live memory: the dump's profile knows nothing of it.
type Giant struct {
	Time time.Time
	TID  int64 // the thread, as the system counts them
	// Bytes is what was asked for. A length of -1 that became a size is 2^64-1 here.
	Bytes  uint64
	Call   string // malloc, calloc, realloc, ...
	Thread string // its name; may be empty
	// Stack is leaf first and never empty: without any frame it is the one location [stack.NoStack]. The locations are
	// those of Dump.GiantStacks, not of Dump.Profile.
	Stack []*profile.Location
}

const (
	// maxGiants bounds what is kept of a dump. The shim has room for 16.
	maxGiants = 256
	// giantFields are the columns of a row; the last two may be empty.
	giantFields = 6
	// giantFrames is how many frames Line shows.
	giantFrames = 8
)

// giant is a row of HEAPWIRE_GIANT before its frames are resolved.
type giant struct {
	Giant
	frames []uint32 // numbers of giantTable
}

// giantLine reads "time<TAB>tid<TAB>bytes<TAB>call<TAB>thread<TAB>addresses". The reader takes blanks off the end of a
// line, so that an empty stack, and an empty name before it, leave no tab behind.
func (p *parser) giantLine(line []byte) {
	fields := bytes.SplitN(line, []byte("\t"), giantFields)
	for len(fields) >= giantFields-2 && len(fields) < giantFields {
		fields = append(fields, nil)
	}
	if len(fields) < giantFields || len(fields[3]) == 0 {
		p.garbage(line)
		return
	}
	var numbers [3]uint64
	for i, max := range []uint64{math.MaxInt64, math.MaxInt64, math.MaxUint64} {
		n, rest, ok := number(fields[i])
		if !ok || len(rest) > 0 || n > max {
			p.garbage(line)
			return
		}
		numbers[i] = n
	}
	if len(p.giants) == maxGiants {
		p.report.GiantsLeftOut++
		return
	}
	if p.giantTable == nil {
		p.giantTable = newAddressTable()
	}
	if !p.readAddresses(fields[5]) {
		p.garbage(line)
	}
	if len(p.addresses) == 0 {
		p.addresses = append(p.addresses, noStack)
	}
	p.giants = append(p.giants, giant{
		Giant: Giant{
			Time:   time.Unix(0, int64(numbers[0])).UTC(),
			TID:    int64(numbers[1]),
			Bytes:  numbers[2],
			Call:   strings.ToValidUTF8(string(fields[3]), "\uFFFD"),
			Thread: unescape(fields[4]),
		},
		frames: p.giantTable.ids(nil, p.addresses),
	})
}

// giantProfile makes a profile of the giants alone, one sample each, and the giants with its locations. It borrows the
// functions of HEAPWIRE_FRAMES, hands out a copy, and gives them back for the profile of live memory: so it comes first.
func (p *parser) giantProfile() (*profile.Profile, []Giant) {
	if len(p.giants) == 0 {
		return nil, nil
	}
	b := builder{parser: p, table: p.giantTable, prof: &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "requests", Unit: "count"}, {Type: "requested_space", Unit: "bytes"}},
	}}
	b.locate()
	for _, g := range p.giants {
		s := &profile.Sample{
			Value: []int64{1, int64(min(g.Bytes, maxEstimate))},
			Label: map[string][]string{"call": {g.Call}},
			// Numbers keep apart what else is equal (stack.Clean), so that sample i stays giant i.
			NumLabel: map[string][]int64{"thread_id": {g.TID}, "time": {g.Time.UnixNano()}},
			NumUnit:  map[string][]string{"thread_id": {"id"}, "time": {"nanoseconds"}},
		}
		if g.Thread != "" {
			s.Label["thread_name"] = []string{g.Thread}
		}
		for _, n := range g.frames {
			s.Location = append(s.Location, b.locations[b.alias[n]])
		}
		b.prof.Sample = append(b.prof.Sample, s)
	}
	b.countNameless()
	own := b.prof.Copy()
	for _, f := range b.prof.Function {
		f.ID = 0
	}
	giants := make([]Giant, len(p.giants))
	for i, g := range p.giants {
		giants[i] = g.Giant
		giants[i].Stack = own.Sample[i].Location
	}
	return own, giants
}

// Line tells the giant on one line: "request of 896.1 GiB by malloc in thread 'listener' at read_message server.py:41 <
// serve server.py:60". It shows the Python frames if there are any, else the native ones, from the innermost outwards.
func (g Giant) Line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "request of %s by %s in thread ", binarySize(g.Bytes), g.Call)
	if g.Thread != "" {
		fmt.Fprintf(&b, "'%s'", g.Thread)
	} else {
		fmt.Fprintf(&b, "%d", g.TID)
	}
	at := g.Stack
	for i, l := range g.Stack {
		if stack.IsPython(l) {
			at = g.Stack[i:]
			break
		}
	}
	for i, l := range at {
		switch {
		case i == 0:
			b.WriteString(" at ")
		case i == giantFrames:
			fmt.Fprintf(&b, " < (%d more)", len(at)-i)
		default:
			b.WriteString(" < ")
		}
		if i == giantFrames {
			break
		}
		b.WriteString(stack.Short(l))
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, b.String())
}

// binarySize is a size to three or four digits: "512 B", "896.1 GiB".
func binarySize(n uint64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n), 0
	for f >= 1023.95 && unit < 6 { // what would print as 1024.0 is 1.0 of the next
		f /= 1024
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", f, " KMGTPE"[unit])
}
