// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/heapwire/heapwire/convert/compare"
	"github.com/heapwire/heapwire/exporter/sink"
)

const (
	// maxNames bounds the stacks whose frames are remembered, over all processes, which mostly run the same program.
	maxNames = 1 << 16
	// maxGiants bounds the huge requests remembered of a process.
	maxGiants = 16
	// maxOOMs bounds the errors of devices remembered of a process.
	maxOOMs = 16
	// maxVerdicts is how many verdicts of a process are told at a time, those that matter most.
	maxVerdicts = 3
	// tellAgain is how long a verdict that has been told is not told again, unless what it is about has doubled.
	tellAgain = time.Hour
)

// Process is what the pipeline saw of one process.
type Process struct {
	Folder   string // name of the process folder
	Identity sink.Identity
	Dumps    int       // dumps found
	Last     time.Time // when the last one converted was taken
	Reason   string    // of the last dump
	Live     int64     // live heap at the last dump, bytes
	Giants   []string  // single huge requests, the first maxGiants, a line each
	OOMs     []string  // errors of devices that ran out of memory, the first maxOOMs, a line each
	Left     string    // why the folder is left in the spool; "" if it was removed
	// Snapshots is the folder, where it is none of a process but one of Config.Folders.
	Snapshots string
}

// Growth is a stack of a process that grew.
type Growth struct {
	Folder string
	compare.Growth
}

// snapshotOf is what is remembered of an item.
func snapshotOf(it *sink.Item) compare.Snapshot {
	s := compare.SnapshotOf(it.Profile)
	s.Time, s.Seq, s.Reason, s.Figures = it.Time, it.Seq, it.Reason, it.Figures
	if step, ok := it.Figures["step"]; ok {
		s.Step = step
	}
	return s
}

// remember adds a snapshot to a process's series. It is called with p.mu held.
func (p *Pipeline) remember(proc *process, s compare.Snapshot) {
	proc.series.Add(s)
	for key, n := range s.Names {
		if _, ok := p.names[key]; !ok {
			p.names[key] = n
		}
	}
	if len(p.names) <= maxNames {
		return
	}
	for key := range p.names {
		if !slices.ContainsFunc(p.seen, func(other *process) bool { return other.series.Knows(key) }) && !p.known(key) {
			delete(p.names, key)
		}
	}
}

func (p *Pipeline) known(key uint64) bool {
	for _, proc := range p.processes {
		if proc.series.Knows(key) {
			return true
		}
	}
	return false
}

// judged gives the verdicts on a process as it stands. It is called with p.mu held.
func (p *Pipeline) judged(proc *process, giants []string) []compare.Verdict {
	if proc.series.Dumps() == 0 {
		return nil
	}
	return compare.Process{
		Name: proc.summary.Folder, Rank: proc.identity.Rank, Series: &proc.series, Names: p.names, Giants: giants,
	}.Verdicts()
}

// toldVerdict is when a verdict was told, and of how much.
type toldVerdict struct {
	bytes int64
	at    time.Time
}

// tell makes events of the verdicts that a dump leads to and that are news. It is called with p.mu held.
func (p *Pipeline) tell(proc *process, it *sink.Item) []*entry {
	if !p.takesEvents() {
		return nil
	}
	var out []*entry
	now := p.cfg.now()
	for i, v := range p.judged(proc, it.Giants) {
		if i == maxVerdicts {
			break
		}
		if v.Kind == compare.Undecided {
			continue // who reads on is told when it is decided
		}
		name := verdictKey(v)
		if told, ok := proc.verdicts[name]; ok && now.Sub(told.at) < tellAgain && v.Bytes < 2*told.bytes {
			continue
		}
		if proc.verdicts == nil {
			proc.verdicts = map[uint64]toldVerdict{}
		}
		proc.verdicts[name] = toldVerdict{v.Bytes, now}
		ev := &sink.Event{
			Identity: proc.identity, Process: it.Process, Observed: now,
			Verdict: verdictOf(v, sink.Snapshot{Seq: it.Seq, Reason: it.Reason, Kind: it.Kind, Device: it.Device, Step: proc.step()}, it.Time, it.ProfileID),
		}
		e := &entry{process: proc, event: ev, found: time.Now(), taken: true, open: map[*worker]bool{}}
		for _, w := range p.workers {
			if w.events != nil {
				e.open[w] = true
			}
		}
		p.stats.Pending++
		proc.told++
		proc.entries[verdictNote(proc.told)] = e
		out = append(out, e)
	}
	return out
}

func (p *Pipeline) takesEvents() bool {
	return slices.ContainsFunc(p.workers, func(w *worker) bool { return w.events != nil })
}

// step is the last one known, -1 for none.
func (proc *process) step() int64 {
	_, last := proc.series.Ends()
	return last.Step
}

// verdictKey tells verdicts apart: by kind and stack, giant requests by all they say.
func verdictKey(v compare.Verdict) uint64 {
	h := fnv.New64a()
	h.Write([]byte(v.Kind))
	h.Write(binary.BigEndian.AppendUint64(nil, v.Key))
	if v.Kind == compare.Giant {
		h.Write([]byte(v.Says))
	}
	return h.Sum64()
}

// verdictOf is a verdict as sinks get it.
func verdictOf(v compare.Verdict, from sink.Snapshot, at time.Time, id [16]byte) *sink.Verdict {
	out := &sink.Verdict{
		Snapshot: from, Time: at, ProfileID: id, Kind: string(v.Kind), Bytes: v.Bytes, Says: v.Says, Helps: v.Helps, Confidence: v.Confidence,
		Numbers: map[string]float64{}, Stack: textOf(v.Stack.Frames, topFrames),
	}
	for _, n := range v.Numbers {
		out.Numbers[n.Key] = n.Value
	}
	if len(v.Stack.Frames) > 0 {
		at := v.Stack.Frames[0]
		out.Function, out.File, out.Line = at.Function, at.File, at.Line
	}
	return out
}

func largest(grown []Growth, n int) []Growth {
	slices.SortStableFunc(grown, func(a, b Growth) int {
		return cmp.Or(compare.ByRank(a.Growth, b.Growth), cmp.Compare(a.Folder, b.Folder))
	})
	return grown[:min(n, len(grown))]
}

// judgeDevices remembers what a snapshot says of the devices that it has. It is called with p.mu held.
func (proc *process) judgeDevices(verdicts map[string][]compare.Verdict) {
	for device, judged := range verdicts {
		if proc.devices == nil {
			proc.devices = map[string][]compare.Verdict{}
		}
		proc.devices[device] = judged
	}
}

// onDevices gives the verdicts on a process's devices. It is called with p.mu held.
func (proc *process) onDevices() []compare.Verdict {
	var out []compare.Verdict
	for _, device := range slices.Sorted(maps.Keys(proc.devices)) {
		for _, v := range proc.devices[device] {
			v.Process, v.Rank = proc.summary.Folder, proc.identity.Rank
			out = append(out, v)
		}
	}
	return out
}
