// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func byAll(names []string, why string) (out []string) {
	for _, n := range names {
		out = append(out, n+why)
	}
	return out
}

func TestExcess(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	file := func(process string, seq uint64, reason string, minutes int) Waiting {
		return Waiting{Process: process, Dump: Dump{
			Name: fmt.Sprintf("%s/%d.%s", process, seq, reason), Seq: seq, Reason: reason, Size: 100, ModTime: now.Add(-time.Duration(minutes) * time.Minute),
		}}
	}
	last := func(w Waiting) Waiting { w.Last = true; return w }
	kept := func(w Waiting) Waiting { w.Kept = true; return w }
	all := []Waiting{
		file("a", 1, "start", 60),
		file("a", 2, "interval", 50),
		file("a", 3, "pressure", 55),
		file("a", 4, "oom", 59),
		file("a", 5, "interval", 40),
		last(file("a", 6, "interval", 58)),
		file("b", 7, "interval", 45),
		last(file("b", 8, "exit", 30)),
		kept(file("b", 3, "interval", 1)),
	}
	order := []string{
		"b/3.interval",                                 // delivered already
		"a/2.interval", "b/7.interval", "a/5.interval", // plain, the oldest first
		"a/3.pressure",             // a trigger
		"a/1.start",                // the first
		"a/6.interval", "b/8.exit", // the last
		"a/4.oom",
	}
	f := func(limits Limits, want ...string) {
		t.Helper()
		var got []string
		for _, d := range Excess(all, limits, now) {
			got = append(got, all[d.Index].Name+" "+string(d.Why))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v drops %q, want %q", limits, got, want)
		}
	}
	f(Limits{})
	f(Limits{Bytes: 900, Files: 9, Age: time.Hour})
	for n := range len(order) + 1 {
		var byBytes, byFiles []string
		for _, name := range order[:n] {
			byBytes, byFiles = append(byBytes, name+" bytes"), append(byFiles, name+" files")
		}
		if n < len(order) {
			f(Limits{Bytes: int64(len(order)-n) * 100}, byBytes...)
			f(Limits{Files: len(order) - n}, byFiles...)
		}
	}
	f(Limits{Age: 57 * time.Minute}, "a/1.start age", "a/4.oom age", "a/6.interval age")
	f(Limits{Age: 57 * time.Minute, Files: 5}, "a/1.start age", "a/4.oom age", "a/6.interval age", "b/3.interval files")
	// An error's snapshot larger than the bound stays; with a second one, the newer does.
	f(Limits{Bytes: 50}, byAll(order[:len(order)-1], " bytes")...)
	all = append(all, file("b", 9, "oom", 20))
	f(Limits{Bytes: 50}, byAll(order, " bytes")...)
	// Snapshots of windows are plain dumps, and no process's first or last.
	all = []Waiting{file("a", 1, "steps4-5", 60), last(file("a", 2, "segments", 50)), file("a", 3, "pressure", 55), file("a", 4, "mine", 54)}
	for i := range all {
		if i != 2 {
			all[i].Kind = "cuda"
		}
	}
	f(Limits{Files: 1}, "a/1.steps4-5 files", "a/2.segments files", "a/3.pressure files")
	// The clock was set back by a day: nothing is old.
	now = now.Add(-24 * time.Hour)
	f(Limits{Age: time.Hour})
}
