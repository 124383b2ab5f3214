// SPDX-License-Identifier: Apache-2.0

package pyroscope

import (
	"encoding/binary"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/exporter/sink"
)

const (
	allocPrefix = "alloc_"

	// maxBaselines and maxBaselineStacks bound what is remembered of processes, about 50 bytes a stack.
	maxBaselines      = 1024
	maxBaselineStacks = 1 << 20
)

// deltas turns what a process has ever allocated, as its dumps have it, into what it allocated since the dump before: the
// server adds up whatever it gets and takes no differences itself (version 2).
//
// Nothing of it outlives the sink. A process's first dump, number 1, counts from its start; any other dump whose
// predecessor is not known here only begins a new difference.
type deltas struct {
	mu        sync.Mutex
	baselines map[string]*baseline // by process
	order     []string             // least recently used first
	stacks    int
}

type baseline struct {
	seq    uint64
	types  string // of the columns
	totals totals
}

// totals are the sums of the alloc_* columns by stack, in the order of the columns.
type totals map[uint64][]int64

// allocColumns are the columns of a profile that count since the process's start.
func allocColumns(it *sink.Item) []int {
	if it.View == "alloc" {
		return nil // counts in a window, not since the start
	}
	var columns []int
	for i, st := range it.Profile.SampleType {
		if strings.HasPrefix(st.Type, allocPrefix) {
			columns = append(columns, i)
		}
	}
	return columns
}

// allocTypes names the columns of allocColumns: what was sampled with others is nothing to take a difference from.
func allocTypes(it *sink.Item) string {
	var names strings.Builder
	for _, c := range allocColumns(it) {
		names.WriteString(it.Profile.SampleType[c].Type + " ")
	}
	return names.String()
}

// sumsOf gives the totals of a profile, and each sample's key.
func sumsOf(p *profile.Profile, columns []int) (totals, []uint64) {
	sums, keys := make(totals, len(p.Sample)), make([]uint64, len(p.Sample))
	for i, s := range p.Sample {
		keys[i] = keyOf(s)
		row := sums[keys[i]]
		if row == nil {
			row = make([]int64, len(columns))
			sums[keys[i]] = row
		}
		for c, column := range columns {
			row[c] += s.Value[column]
		}
	}
	return sums, keys
}

// keyOf names a stack by what is the same in every dump of a process.
func keyOf(s *profile.Sample) uint64 {
	h := fnv.New64a()
	var number [8]byte
	put := func(n uint64) {
		binary.LittleEndian.PutUint64(number[:], n)
		h.Write(number[:])
	}
	text := func(s string) {
		put(uint64(len(s)))
		h.Write([]byte(s))
	}
	for _, l := range s.Location {
		put(l.Address)
		put(uint64(len(l.Line)))
		for _, ln := range l.Line {
			put(uint64(ln.Line))
			if ln.Function != nil {
				text(ln.Function.Name)
				text(ln.Function.Filename)
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(s.Label)) {
		text(k)
		for _, v := range s.Label[k] {
			text(v)
		}
	}
	return h.Sum64()
}

// since gives what was known before an item's dump; known is false if that is nothing to take a difference from.
func (d *deltas) since(it *sink.Item) (before totals, known bool) {
	if it.Seq == 1 {
		return nil, true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.baselines[it.Process]
	if b == nil || b.seq >= it.Seq || b.types != allocTypes(it) {
		return nil, false
	}
	return b.totals, true
}

// keep notes that the server has, or may have, all up to an item's dump.
func (d *deltas) keep(it *sink.Item, now totals) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if b := d.baselines[it.Process]; b != nil && b.seq >= it.Seq {
		return
	}
	d.forget(it.Process)
	if it.Reason == "exit" {
		return
	}
	if d.baselines == nil {
		d.baselines = map[string]*baseline{}
	}
	d.baselines[it.Process] = &baseline{it.Seq, allocTypes(it), now}
	d.order = append(d.order, it.Process)
	d.stacks += len(now)
	for len(d.order) > 1 && (len(d.order) > maxBaselines || d.stacks > maxBaselineStacks) {
		d.forget(d.order[0])
	}
}

func (d *deltas) forget(process string) {
	b := d.baselines[process]
	if b == nil {
		return
	}
	d.stacks -= len(b.totals)
	delete(d.baselines, process)
	d.order = slices.DeleteFunc(d.order, func(p string) bool { return p == process })
}

// difference is what each sample's stack allocated since, in the alloc_* columns, on the first sample of a stack.
type difference struct {
	columns []int
	rows    [][]int64 // by sample; nil: nothing
}

func differenceOf(columns []int, now, before totals, keys []uint64) difference {
	d := difference{columns: columns, rows: make([][]int64, len(keys))}
	done := make(map[uint64]bool, len(now))
	for i, key := range keys {
		if done[key] {
			continue
		}
		done[key] = true
		row := slices.Clone(now[key])
		for c, was := range before[key] {
			// An estimate that went down, or another stack under the same key: the server drops samples below 0.
			row[c] = max(row[c]-was, 0)
		}
		d.rows[i] = row
	}
	return d
}
