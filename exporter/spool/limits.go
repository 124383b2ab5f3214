// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Limits bound what may wait in a spool. 0 is no bound.
type Limits struct {
	Bytes int64
	Files int
	Age   time.Duration // since the file was written
}

// Why names the bound that a file was dropped for.
type Why string

const (
	ForBytes Why = "bytes"
	ForFiles Why = "files"
	ForAge   Why = "age"
)

// Waiting is a file in the spool, as Excess judges it.
type Waiting struct {
	Dump
	Process string // folder name
	Kept    bool   // delivered or rejected before: nothing is lost with it
	Last    bool   // the newest dump of its process
}

// Dropped is a file that has to go, and why. Index is its place in what Excess was given.
type Dropped struct {
	Index int
	Why   Why
}

// Excess chooses what has to go so that the rest is within the limits: what was delivered or rejected first, then plain
// dumps, then those that a trigger asked for, then a process's first, its last, and what tells of memory that ran out.
// Among equals the oldest goes first. A file from the future, as a clock that was set back leaves it, is not old. The one
// snapshot of an error that would go last stays, even if it alone is above Limits.Bytes: it may be as large as the history.
func Excess(files []Waiting, limits Limits, now time.Time) []Dropped {
	order := make([]int, len(files))
	var bytes int64
	for i, f := range files {
		order[i] = i
		bytes += f.Size
	}
	count := len(files)
	var out []Dropped
	drop := func(i int, why Why) {
		out = append(out, Dropped{Index: i, Why: why})
		bytes -= files[i].Size
		count--
	}
	if limits.Age > 0 {
		order = slices.DeleteFunc(order, func(i int) bool {
			old := now.Sub(files[i].ModTime) > limits.Age
			if old {
				drop(i, ForAge)
			}
			return old
		})
	}
	tooLarge := func() bool { return limits.Bytes > 0 && bytes > limits.Bytes }
	tooMany := func() bool { return limits.Files > 0 && count > limits.Files }
	if !tooLarge() && !tooMany() {
		return out
	}
	slices.SortStableFunc(order, func(a, b int) int {
		x, y := files[a], files[b]
		return cmp.Or(cmp.Compare(x.worth(), y.worth()), x.ModTime.Compare(y.ModTime), cmp.Compare(x.Process, y.Process), cmp.Compare(x.Seq, y.Seq))
	})
	for _, i := range order {
		switch {
		case tooLarge():
			if count == 1 && files[i].Reason == reasonOOM {
				return out
			}
			drop(i, ForBytes)
		case tooMany():
			drop(i, ForFiles)
		default:
			return out
		}
	}
	return out
}

const reasonOOM = "oom"

// worth orders files by how long they are kept.
func (w Waiting) worth() int {
	switch {
	case w.Kept:
		return 0
	case w.Reason == reasonOOM:
		return 5
	case w.Kind != "" && (w.Reason == "segments" || strings.HasPrefix(w.Reason, "steps")):
		return 1
	case w.Last:
		return 4
	case w.Seq == 1:
		return 3
	}
	switch w.Reason {
	case "interval", "start", "step", "exit":
		return 1
	}
	return 2
}
