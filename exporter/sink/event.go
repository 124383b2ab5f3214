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

// Event tells that a process ended without its last dump: killed, most likely.
type Event struct {
	Identity Identity
	Process  string // name of the process's folder in the spool

	Observed time.Time // when that was noticed
	Ended    time.Time // when it ended; zero if nobody who could know has said so

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
