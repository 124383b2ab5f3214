// SPDX-License-Identifier: Apache-2.0

package sink

import (
	"context"
	"time"
)

// EventSink is a back end for what is told of a process beside its profiles. A [Sink] may be one too.
type EventSink interface {
	Name() string

	// ExportEvent delivers one event; its errors are those of [Sink].Export.
	ExportEvent(ctx context.Context, ev *Event) error

	Close(ctx context.Context) error
}

// Addressed is a sink that says where it delivers to. What one destination has accepted, another has not: a sink without
// it is taken for the same as any other of its name.
type Addressed interface{ Destination() string }

// Counting is a sink that counts more than what it accepted and refused.
type Counting interface{ Counts() map[string]int }

// Event tells of a process what is in no profile: that a device ran out of memory, if OOM is set; that the history in a
// snapshot does not reach back, if Window is set; what its figures mean, if Verdict is set; else that the process ended without its last dump: killed, most likely.
type Event struct {
	Identity Identity
	Process  string // name of the process's folder in the spool

	Observed time.Time // when that was noticed

	OOM     *OOM
	Window  *Window
	Verdict *Verdict

	// The rest is of the end.

	Ended time.Time // when it ended; zero if nobody who could know has said so

	// Signal is what killed it; 0 if nobody who could know has said so.
	Signal int

	// OOMKills is how many processes of its cgroup the kernel killed for want of memory since it was first seen (oom_kill
	// in memory.events); -1 if that could not be read.
	OOMKills int64

	// Last is what the last dump said; nil if there was none.
	Last *LastDump
}

// LastDump is the newest dump of a process, as much of it as an event tells.
type LastDump struct {
	Seq       uint64           `json:"seq"`
	Reason    string           `json:"reason"`
	Time      time.Time        `json:"time"`
	ProfileID [16]byte         `json:"-"`
	Live      int64            `json:"live"` // bytes
	Figures   map[string]int64 `json:"figures,omitempty"`
	Top       []Held           `json:"top,omitempty"` // the stacks that held most
}

// Held is a stack and the bytes it held. Frames read "function file:line", the line charged first, then its callers.
type Held struct {
	Bytes  int64    `json:"bytes"`
	Frames []string `json:"frames"`
}

// Snapshot names the snapshot of a device's memory that an event is from.
type Snapshot struct {
	Seq          uint64
	Reason       string
	Kind, Device string // "cuda", "cuda:0"
	Step         int64  // -1 if not known
	Steps        string // "steps4-5", for a window of steps
}

// OOM is an error of a device that ran out of memory. Figures are bytes, and -1 if not known.
type OOM struct {
	Snapshot
	Time time.Time
	// ProfileID is that of the profile of what was live just then; zero if there is none.
	ProfileID [16]byte

	Requested, Free, Total, Limit                      int64 // Limit is what of Total the process may use
	Live, LiveObjects, Reserved, Inactive, LargestHole int64
	// AfterUnwinding tells that the error had freed most of this when the snapshot was taken; LiveAtDump is what was left.
	AfterUnwinding bool
	LiveAtDump     int64

	Count   int64    // errors of the process so far, this one included
	Skipped int64    // errors since the snapshot before that have none
	Thread  string   // that ran out, by its name
	Stack   []string // of that thread; frames read as those of Held
	Top     []Held   // the stacks that held most
	Missing string   // why there is no snapshot
}

// Window tells that the history in a snapshot does not reach back to the first allocation.
type Window struct {
	Snapshot
	Time                           time.Time
	Events, StaleFrees, StaleBytes int64 // frees of what was allocated before
	Overflowed                     bool  // older events were overwritten
	MaxEntries                     int64 // of the ring; -1 if not known
}

// Verdict says what the figures of a process mean (convert/compare has the kinds).
type Verdict struct {
	Snapshot
	Time      time.Time // of the dump that led to it
	ProfileID [16]byte  // of that dump's profile; zero if there is none

	Kind        string // "leak", "allocator_retention", ...
	Bytes       int64  // what it is about
	Says, Helps string
	// Numbers are the figures that led to it, by the names that convert/compare gives them.
	Numbers map[string]float64
	// Confidence is the probability that a change is one, given the sampling error.
	Confidence float64
	// Function, File and Line are those of the line that it is about, if it is about one; Stack has it and its callers, frames
	// as those of Held.
	Function, File string
	Line           int64
	Stack          []string
}
