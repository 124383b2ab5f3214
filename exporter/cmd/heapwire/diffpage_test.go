// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/compare"
)

// The page has both sides of each stack, those of the base with the sign by which the viewer shows a difference, and shares of the
// base.
func TestDiffPage(t *testing.T) {
	c := newCall(t)
	before.write(t, filepath.Join(c.dir, "before"))
	after.write(t, filepath.Join(c.dir, "after"))
	if status := c.do(t, "diff", "--format", "html", "before", "after"); status != 0 {
		t.Fatalf("status %d: %s", status, &c.stderr)
	}
	page := c.stdout.String()
	for _, want := range []string{
		"<!DOCTYPE html>", "<title>before → after: +224.0 MiB live; red grew, green shrank</title>",
		`{"Value":335544320,`, `{"Value":-100663296,`, `"FullName":"Scheduler.add_request"`, `"FileName":"/srv/scheduler-1.1/service/scheduler.py"`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %s", want)
		}
	}
	if _, total, _ := strings.Cut(page, `stackViewer({"Total":`); !strings.HasPrefix(total, "369098752,") {
		t.Errorf("the total is not the base's, 96 and 256 MiB: %.20s", total)
	}
}

// However many stacks there are, none of their bytes are left out, and those that changed most are there by name.
func TestDiffPageIsBounded(t *testing.T) {
	const stacks = 3000
	side := func(grown int64) *compare.Side {
		p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "inuse_objects", Unit: "count"}, {Type: "inuse_space", Unit: "bytes"}}}
		for i := range stacks {
			f := &profile.Function{ID: uint64(i + 1), Name: fmt.Sprintf("f%d", i)}
			l := &profile.Location{ID: f.ID, Line: []profile.Line{{Function: f}}}
			p.Function, p.Location = append(p.Function, f), append(p.Location, l)
			p.Sample = append(p.Sample, &profile.Sample{Location: []*profile.Location{l}, Value: []int64{1, 1000 + grown*int64(i)}})
		}
		s := &compare.Side{Name: "side"}
		s.Add(p, 1)
		return s
	}
	p := diffProfile(compare.Diff(side(0), side(1)))
	if err := p.CheckValid(); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	var base, head int64
	for _, s := range p.Sample {
		names[s.Location[0].Line[0].Function.Name] = true
		if v := s.Value[0]; s.DiffBaseSample() != (v < 0) {
			t.Errorf("%d: the mark of the base is %v", v, s.DiffBaseSample())
		} else if v < 0 {
			base -= v
		} else {
			head += v
		}
	}
	if base != stacks*1000 || head != stacks*1000+stacks*(stacks-1)/2 {
		t.Errorf("base %d, head %d", base, head)
	}
	if len(names) != maxDiffStacks+1 || !names["f2999"] || names["f0"] || !names["[2100 stacks that changed less]"] {
		t.Errorf("%d names", len(names))
	}
}
