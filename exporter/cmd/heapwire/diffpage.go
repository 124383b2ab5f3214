// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/compare"
	"github.com/heapwire/heapwire/convert/stack"
	"github.com/heapwire/heapwire/exporter/file"
)

// maxDiffStacks bounds the page, which has two boxes a stack; the others, those that changed least, are one.
const maxDiffStacks = 900

// diffHTML makes a page with one flame graph of both sides. A box is as wide as what both hold in it, red as far as it grew and
// green as far as it shrank: pprof's viewer does so where values of the base are negative.
func diffHTML(c *compare.Comparison) ([]byte, error) {
	title := fmt.Sprintf("%s → %s: %s live; red grew, green shrank", oneLine(c.Base.Name), oneLine(c.Head.Name), signed(c.Delta()))
	return file.HTML(diffProfile(c), title)
}

// diffProfile has a sample for each stack of the head, and one of the base with the opposite sign and pprof's mark for it, by which
// shares are those of the base.
func diffProfile(c *compare.Comparison) *profile.Profile {
	p := &profile.Profile{
		SampleType:        []*profile.ValueType{{Type: "inuse_space", Unit: "bytes"}},
		DefaultSampleType: "inuse_space",
	}
	locations := map[stack.Frame]*profile.Location{}
	at := func(frame stack.Frame) *profile.Location {
		l := locations[frame]
		if l == nil {
			f := &profile.Function{ID: uint64(len(p.Function) + 1), Name: frame.Function, Filename: frame.File}
			l = &profile.Location{ID: f.ID, Line: []profile.Line{{Function: f}}}
			p.Function, p.Location = append(p.Function, f), append(p.Location, l)
			locations[frame] = l
		}
		return l
	}
	add := func(frames []stack.Frame, base, head float64) {
		var where []*profile.Location
		for _, f := range frames {
			where = append(where, at(f))
		}
		if v := int64(math.Round(head)); v != 0 {
			p.Sample = append(p.Sample, &profile.Sample{Location: where, Value: []int64{v}})
		}
		if v := int64(math.Round(base)); v != 0 {
			p.Sample = append(p.Sample, &profile.Sample{Location: where, Value: []int64{-v}, Label: map[string][]string{"pprof::base": {"true"}}})
		}
	}
	stacks := c.Stacks()
	slices.SortStableFunc(stacks, func(a, b compare.Stack) int {
		return cmp.Or(cmp.Compare(math.Abs(b.Head-b.Base), math.Abs(a.Head-a.Base)), cmp.Compare(b.Head+b.Base, a.Head+a.Base))
	})
	var base, head float64
	for i, s := range stacks {
		if i < maxDiffStacks {
			add(s.Frames, s.Base, s.Head)
			continue
		}
		base, head = base+s.Base, head+s.Head
	}
	if n := len(stacks) - maxDiffStacks; n > 0 {
		add([]stack.Frame{{Function: fmt.Sprintf("[%d stacks that changed less]", n)}}, base, head)
	}
	return p
}
