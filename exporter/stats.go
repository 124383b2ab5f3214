// SPDX-License-Identifier: Apache-2.0

package exporter

import "time"

// Stats counts what a pipeline has done since it was made.
type Stats struct {
	Dumps             int // found in the spool
	Converted         int
	ConvertFailed     int // could not be read as a dump; set aside
	ReadFailed        int // reads that the disk failed; tried again
	AcknowledgeFailed int // delivered, but not removed from the spool
	Pending           int // found and not yet done
	Warnings          int // distinct ones
	ConvertTime       time.Duration
	Sinks             []SinkStats
}

// SinkStats counts what one sink has done.
type SinkStats struct {
	Name      string
	Accepted  int   // dumps
	GivenUp   int   // dumps
	Retries   int   // attempts after the first
	Bytes     int64 // size in the spool of the dumps accepted
	LastError error // of the last attempt that failed
}

// Stats gives the figures as they are now.
func (p *Pipeline) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	for _, w := range p.workers {
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
		if include == nil || include(proc.summary) {
			grown = append(grown, largest(proc.history.growth(proc.summary.Folder, p.names), n)...)
		}
	}
	return largest(grown, n)
}
