// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"maps"
	"slices"
	"time"

	"github.com/heapwire/heapwire/convert/compare"
	"github.com/heapwire/heapwire/exporter/sink"
)

// Stats counts what a pipeline has done since it was made.
type Stats struct {
	Dumps             int // found in the spool
	Converted         int
	ConvertFailed     int            // could not be read as a dump; set aside
	ReadFailed        int            // reads that the disk failed; tried again
	AcknowledgeFailed int            // delivered, but not removed from the spool
	Dropped           map[string]int // never delivered to all: by the limit that they were above, spool.Why
	Killed            int            // processes that ended without their last dump
	Pending           int            // found and not yet done
	Oldest            time.Duration  // since the dump that has waited longest was written; 0 if none waits
	Warnings          int            // distinct ones
	ConvertTime       time.Duration
	Sinks             []SinkStats
}

// SinkStats counts what one sink has done.
type SinkStats struct {
	Name       string
	EventsOnly bool           // takes no dumps
	Accepted   int            // dumps
	Events     int            // events accepted: ends of processes, errors of devices
	GivenUp    int            // dumps, and events
	Refused    int            // those among them that the sink refused for good; the others were overdue or unreadable
	Retries    int            // attempts after the first
	Bytes      int64          // size in the spool of the dumps accepted
	Waiting    int            // in the sink's queue
	Down       bool           // the last attempt failed
	LastError  error          // of the last attempt that failed
	Counts     map[string]int // what the sink itself counts beside these
}

// Add adds what another pipeline has done. Sinks of one name count as one.
func (s *Stats) Add(other Stats) {
	s.Dumps += other.Dumps
	s.Converted += other.Converted
	s.ConvertFailed += other.ConvertFailed
	s.ReadFailed += other.ReadFailed
	s.AcknowledgeFailed += other.AcknowledgeFailed
	s.Killed += other.Killed
	s.Pending += other.Pending
	s.Oldest = max(s.Oldest, other.Oldest)
	s.Warnings += other.Warnings
	s.ConvertTime += other.ConvertTime
	s.Dropped = sumOf(s.Dropped, other.Dropped)
	for _, o := range other.Sinks {
		at := slices.IndexFunc(s.Sinks, func(w SinkStats) bool { return w.Name == o.Name })
		if at < 0 {
			s.Sinks = append(s.Sinks, o)
			continue
		}
		w := &s.Sinks[at]
		w.Accepted += o.Accepted
		w.Events += o.Events
		w.GivenUp += o.GivenUp
		w.Refused += o.Refused
		w.Retries += o.Retries
		w.Bytes += o.Bytes
		w.Waiting += o.Waiting
		if o.Down {
			w.Down, w.LastError = true, o.LastError
		}
		w.Counts = sumOf(w.Counts, o.Counts)
	}
}

func sumOf(a, b map[string]int) map[string]int {
	out := maps.Clone(a)
	if out == nil && len(b) > 0 {
		out = map[string]int{}
	}
	for k, n := range b {
		out[k] += n
	}
	return out
}

// Stats gives the figures as they are now.
func (p *Pipeline) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Dropped = maps.Clone(p.stats.Dropped)
	if oldest := p.oldest(); !oldest.IsZero() {
		s.Oldest = max(p.cfg.now().Sub(oldest), 0)
	}
	for _, w := range p.workers {
		w.stats.Waiting = w.waiting()
		if c, ok := w.any().(sink.Counting); ok {
			w.stats.Counts = c.Counts()
		}
		s.Sinks = append(s.Sinks, w.stats)
	}
	return s
}

// Processes gives what was seen of each process, in the order in which they were found. Of those that are left in the
// spool, Left says why.
func (p *Pipeline) Processes() []Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Process
	for _, proc := range p.seen {
		out = append(out, proc.summary)
	}
	return out
}

// Growth gives the n stacks that grew most from a process's first dump to its last, over all processes that include
// accepts (nil: all), the one that grew most steadily first.
func (p *Pipeline) Growth(n int, include func(Process) bool) []Growth {
	p.mu.Lock()
	defer p.mu.Unlock()
	var grown []Growth
	for _, proc := range p.seen {
		if include != nil && !include(proc.summary) {
			continue
		}
		var own []Growth
		for _, g := range proc.series.Growth(p.names) {
			if len(own) < n && g.Settled() {
				own = append(own, Growth{proc.summary.Folder, g})
			}
		}
		grown = append(grown, own...)
	}
	return largest(grown, n)
}

// Verdicts says what the figures of the processes that include accepts (nil: all), and the last snapshots of their devices, mean,
// what matters most first. Giant requests are in Processes.
func (p *Pipeline) Verdicts(include func(Process) bool) []compare.Verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []compare.Verdict
	for _, proc := range p.seen {
		if include == nil || include(proc.summary) {
			out = append(out, p.judged(proc, nil)...)
			out = append(out, proc.onDevices()...)
		}
	}
	compare.Order(out)
	return out
}
