// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/heapwire/heapwire/convert/compare"
	"github.com/heapwire/heapwire/convert/stack"
	"github.com/heapwire/heapwire/exporter/sink"
	"github.com/heapwire/heapwire/exporter/spool"
)

// deathNote stands for the event of a process's end where deliveries are noted.
const deathNote = "death"

// verdictNote is the same for the nth verdict on a process.
func verdictNote(n int) string { return "verdict " + strconv.Itoa(n) }

// topStacks is how many stacks an event names, topFrames how many frames of each.
const (
	topStacks = 3
	topFrames = 16
)

// memo is what must be known of a process after its end, and by the next reader if this one ends first.
type memo struct {
	Exited    bool           `json:"exited,omitempty"` // it made its last dump
	Cgroup    string         `json:"cgroup,omitempty"`
	OOMKills  int64          `json:"oom_kills,omitempty"` // of the cgroup when the process was first seen
	Last      *sink.LastDump `json:"last,omitempty"`
	ProfileID string         `json:"profile_id,omitempty"` // of Last
	Told      told           `json:"told,omitempty"`       // errors of devices, by the snapshot that tells of them
}

func readMemo(text string) memo {
	var m memo
	// What cannot be read was written by another version: as good as none.
	if json.Unmarshal([]byte(text), &m) != nil {
		return memo{}
	}
	if m.Last != nil {
		id, err := hex.DecodeString(m.ProfileID)
		if err == nil && len(id) == len(m.Last.ProfileID) {
			copy(m.Last.ProfileID[:], id)
		}
	}
	return m
}

// memorise notes a process's newest dump, or, with none, that it made its last one.
func (p *Pipeline) memorise(proc *process, last *sink.LastDump) {
	p.mu.Lock()
	m := &proc.memo
	if last == nil {
		m.Exited = true
	} else if m.Last == nil || m.Last.Seq < last.Seq {
		m.Last, m.ProfileID = last, hex.EncodeToString(last.ProfileID[:])
		m.Exited = m.Exited || last.Reason == "exit"
	}
	p.mu.Unlock()
	p.keep(proc)
}

// keep notes for the next reader what is to be known of a process.
func (p *Pipeline) keep(proc *process) {
	p.mu.Lock()
	text, err := json.Marshal(proc.memo)
	p.mu.Unlock()
	if err == nil {
		err = proc.claim.SetNote(string(text))
	}
	p.complain(err)
}

func lastDump(it *sink.Item, s compare.Snapshot) *sink.LastDump {
	last := &sink.LastDump{Seq: it.Seq, Reason: it.Reason, Time: it.Time, ProfileID: it.ProfileID, Live: s.Live.Bytes, Figures: it.Figures}
	keys := make([]uint64, 0, len(s.Stacks))
	for key := range s.Stacks {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b uint64) int {
		return cmp.Or(cmp.Compare(s.Stacks[b].Bytes, s.Stacks[a].Bytes), cmp.Compare(a, b))
	})
	for _, key := range keys[:min(topStacks, len(keys))] {
		last.Top = append(last.Top, sink.Held{Bytes: s.Stacks[key].Bytes, Frames: textOf(s.Names[key].Frames, topFrames)})
	}
	return last
}

// textOf reads "function file:line" a frame.
func textOf(frames []stack.Frame, most int) []string {
	var out []string
	for _, f := range frames[:min(most, len(frames))] {
		text := f.Function
		if f.File != "" {
			text += " " + f.File
			if f.Line > 0 {
				text += ":" + strconv.FormatInt(f.Line, 10)
			}
		}
		out = append(out, text)
	}
	return out
}

// ending is what a process's parent knows of its end.
type ending struct {
	start  uint64 // start ticks: a pid may be used again
	known  bool
	at     time.Time
	signal int
}

// Expect says that the end of a process is going to be told by Ended: its last words wait for that.
func (p *Pipeline) Expect(pid int, startTicks uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endings[pid] = &ending{start: startTicks}
}

// Ended says how a process that Expect named has ended: by a signal, or, with 0, of its own accord.
func (p *Pipeline) Ended(pid int, signal int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.endings[pid]; e != nil {
		e.known, e.at, e.signal = true, p.cfg.now(), signal
	}
}

// mourn offers the event of a process's end, once, if it ended without its last dump.
func (p *Pipeline) mourn(proc *process) {
	p.mu.Lock()
	e := p.mournLocked(proc)
	p.mu.Unlock()
	if e != nil {
		p.offer(e)
	}
}

func (p *Pipeline) mournLocked(proc *process) *entry {
	if proc.state != spool.Dead || proc.mourned {
		return nil
	}
	for _, e := range proc.entries {
		if !e.taken && !e.done {
			return nil // it may be the last dump
		}
	}
	end := p.endings[proc.identity.PID]
	if end != nil && end.start != proc.identity.StartTicks {
		end = nil
	}
	if end != nil && !end.known {
		select {
		case <-p.hurry: // nobody is going to tell any more
		default:
			return nil
		}
	}
	proc.mourned = true
	killed := end != nil && end.known && end.signal != 0
	endedWell := proc.memo.Exited || end != nil && end.known && end.signal == 0
	// Without exit dumps, how it ended is known to its parent alone.
	if endedWell || !killed && (proc.memo.Last == nil || proc.identity.NoExitDump) {
		return nil
	}
	ev := &sink.Event{Identity: proc.identity, Process: proc.claim.Name(), Observed: p.cfg.now(), OOMKills: -1, Last: proc.memo.Last}
	if killed {
		ev.Ended, ev.Signal = end.at, end.signal
	}
	if kills, err := p.cfg.Spool.OOMKills(proc.memo.Cgroup); err == nil {
		ev.OOMKills = max(kills-proc.memo.OOMKills, 0)
	}
	p.stats.Killed++
	e := &entry{process: proc, event: ev, found: time.Now(), taken: true, open: map[*worker]bool{}}
	for _, w := range p.workers {
		if w.events != nil && !proc.claim.Settled(deathNote, w.key) {
			e.open[w] = true
		}
	}
	if len(e.open) == 0 {
		return nil
	}
	p.stats.Pending++
	proc.entries[deathNote] = e
	return e
}
