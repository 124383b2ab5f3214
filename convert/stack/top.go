// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/pprof/profile"
)

// Row is a line of the program and the memory it answers for.
type Row struct {
	Function string
	File     string // full path; see [Frame]
	Line     int64
	Python   bool
	// Flat is what was allocated by this line: the line is the innermost Python frame of the stack, or its leaf where
	// there is no Python frame. Cum is what was allocated by it or by what it called. In the unit of the sample type.
	Flat, Cum int64
	// FlatObjects and CumObjects count the objects, if the profile has the count that belongs to the sample type.
	FlatObjects, CumObjects int64
}

// Short is the row's frame on one line.
func (r Row) Short() string {
	return Frame{Function: r.Function, File: r.File, Line: r.Line, Python: r.Python}.String()
}

// StackRow is one whole stack and what it holds.
type StackRow struct {
	Frames  []Frame // leaf first
	Value   int64
	Objects int64
	// Charged is the index in Frames of the frame that [Top] charges the stack to.
	Charged int
}

// Top returns the n rows with the largest Flat (all for n <= 0), ties by Cum, then by name. Rows without Flat come last,
// by Cum. An unknown sample type gives none; an empty one means the profile's default.
func Top(p *profile.Profile, sampleType string, n int) []Row {
	value, objects := valueIndex(p, sampleType)
	if value < 0 {
		return nil
	}
	ids, frames := frameIDs(p)
	rows := make([]Row, len(frames))
	seen := make([]int, len(frames)) // by which sample, plus one: recursion counts once
	for i, f := range frames {
		rows[i] = Row{Function: f.Function, File: f.File, Line: f.Line, Python: f.Python}
	}
	for i, s := range p.Sample {
		v, o := s.Value[value], int64(0)
		if objects >= 0 {
			o = s.Value[objects]
		}
		if v == 0 && o == 0 {
			continue
		}
		if at := innermost(s); at != nil {
			r := &rows[ids[at]]
			r.Flat += v
			r.FlatObjects += o
		}
		for _, l := range s.Location {
			id := ids[l]
			if seen[id] == i+1 {
				continue
			}
			seen[id] = i + 1
			rows[id].Cum += v
			rows[id].CumObjects += o
		}
	}
	rows = slices.DeleteFunc(rows, func(r Row) bool { return r.Cum == 0 && r.CumObjects == 0 })
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(
			cmp.Compare(b.Flat, a.Flat), cmp.Compare(b.Cum, a.Cum),
			cmp.Compare(a.Function, b.Function), cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	return head(rows, n)
}

// Stacks returns the n largest stacks (all for n <= 0). Stacks that read the same are one.
func Stacks(p *profile.Profile, sampleType string, n int) []StackRow {
	value, objects := valueIndex(p, sampleType)
	if value < 0 {
		return nil
	}
	ids, frames := frameIDs(p)
	index := map[string]int{}
	var rows []StackRow
	var keys []string
	var key []byte
	for _, s := range p.Sample {
		if s.Value[value] == 0 {
			continue
		}
		key = key[:0]
		for _, l := range s.Location {
			id := ids[l]
			key = append(key, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
		}
		i, ok := index[string(key)]
		if !ok {
			i = len(rows)
			index[string(key)] = i
			row := StackRow{Frames: make([]Frame, len(s.Location))}
			at := innermost(s)
			for k, l := range s.Location {
				row.Frames[k] = frames[ids[l]]
				if l == at {
					at, row.Charged = nil, k
				}
			}
			rows = append(rows, row)
			keys = append(keys, row.folded())
		}
		rows[i].Value += s.Value[value]
		if objects >= 0 {
			rows[i].Objects += s.Value[objects]
		}
	}
	order := make([]int, len(rows))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(rows[b].Value, rows[a].Value), cmp.Compare(keys[a], keys[b]))
	})
	order = head(order, n)
	out := make([]StackRow, len(order))
	for i, k := range order {
		out[i] = rows[k]
	}
	return out
}

// Folded writes one line a stack, "root;...;leaf value", sorted, as flame graph tools read it. Stacks that read the same
// are one line; stacks whose value is 0 are left out.
func Folded(w io.Writer, p *profile.Profile, sampleType string) error {
	value, _ := valueIndex(p, sampleType)
	if value < 0 {
		return fmt.Errorf("folding stacks: the profile has no sample type %q", sampleType)
	}
	sums := map[string]int64{}
	for _, r := range Stacks(p, sampleType, 0) {
		sums[r.folded()] += r.Value
	}
	lines := make([]string, 0, len(sums))
	for k := range sums {
		lines = append(lines, k)
	}
	slices.Sort(lines)
	out := bufio.NewWriter(w)
	for _, k := range lines {
		if _, err := fmt.Fprintf(out, "%s %d\n", k, sums[k]); err != nil {
			return fmt.Errorf("writing folded stacks: %w", err)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("writing folded stacks: %w", err)
	}
	return nil
}

// Separate makes a frame's text one that does not break a folded line.
func Separate(frame string) string { return separators.Replace(frame) }

// separators are characters that would break a folded line.
var separators = strings.NewReplacer(";", ":", "\n", " ", "\r", " ")

func (r StackRow) folded() string {
	var b strings.Builder
	for i := len(r.Frames) - 1; i >= 0; i-- {
		b.WriteString(Separate(r.Frames[i].String()))
		if i > 0 {
			b.WriteByte(';')
		}
	}
	return b.String()
}

// frameIDs numbers the distinct frames of a profile.
func frameIDs(p *profile.Profile) (map[*profile.Location]int, []Frame) {
	ids := make(map[*profile.Location]int, len(p.Location))
	index := map[Frame]int{}
	var frames []Frame
	for _, l := range p.Location {
		f := frame(l)
		i, ok := index[f]
		if !ok {
			i = len(frames)
			index[f] = i
			frames = append(frames, f)
		}
		ids[l] = i
	}
	return ids, frames
}

// valueIndex finds a sample type and the count that belongs to it (inuse_space and inuse_objects); -1 for none.
func valueIndex(p *profile.Profile, sampleType string) (value, objects int) {
	if sampleType == "" {
		sampleType = p.DefaultSampleType
	}
	value, objects = -1, -1
	prefix, _, _ := strings.Cut(sampleType, "_")
	for i, t := range p.SampleType {
		switch t.Type {
		case sampleType:
			value = i
		case prefix + "_objects":
			objects = i
		}
	}
	if value >= 0 && p.SampleType[value].Type == prefix+"_objects" {
		objects = value
	}
	return value, objects
}

func head[T any](s []T, n int) []T {
	if n > 0 && n < len(s) {
		return s[:n]
	}
	return s
}
