// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heapwire/heapwire/convert/compare"
	"github.com/heapwire/heapwire/convert/stack"
	"github.com/heapwire/heapwire/exporter"
	"github.com/heapwire/heapwire/exporter/run"
)

// report is what a run tells at its end.
type report struct {
	command   []string
	status    int
	signal    unix.Signal
	took      time.Duration
	out       string // folder of the file sink
	left      string // the spool, when something is left in it
	err       error
	verbose   bool
	stats     exporter.Stats
	processes []exporter.Process
	growth    []exporter.Growth
	verdicts  []compare.Verdict
	own       func(exporter.Process) bool // of this job, not left over from another
}

func (r *report) text() string {
	var b strings.Builder
	line := func(format string, args ...any) {
		b.WriteString(oneLine(fmt.Sprintf("heapwire: "+format, args...)) + "\n")
	}

	line("%s: %s after %s", filepath.Base(r.command[0]), run.Describe(r.status, r.signal), r.took.Round(100*time.Millisecond))
	var (
		own     []exporter.Process
		earlier int
		live    int64
	)
	var folders []exporter.Process
	for _, p := range r.processes {
		switch {
		case p.Snapshots != "":
			if p.Dumps > 0 {
				folders = append(folders, p)
			}
		case r.own(p):
			own = append(own, p)
			live += p.Live
		case p.Dumps > 0:
			earlier += p.Dumps
		}
	}
	if r.stats.Dumps == 0 {
		line("no dump: no process of the job was profiled")
	} else {
		of := ""
		if len(own) > 0 || len(folders) == 0 {
			of = " of " + count(len(own), "process", "processes")
		}
		line("%s%s%s", count(r.stats.Dumps, "dump", "dumps"), of, r.refused())
		for _, p := range folders {
			line("from the snapshots in %s: %d", p.Snapshots, p.Dumps)
		}
		if earlier > 0 {
			line("%d of them were in the spool from earlier processes", earlier)
		}
		for _, s := range r.stats.Sinks {
			if s.EventsOnly && s.Events == 0 && s.GivenUp == 0 {
				continue
			}
			line("%s", r.sink(s))
		}
	}
	for why, n := range r.stats.Dropped {
		line("%s left the spool undelivered: it was above its limit of %s", count(n, "dump", "dumps"), why)
	}
	if len(own) > 0 {
		line("live heap at the end: %s%s", bytesText(live), r.parts(own))
	}
	pids := map[string]int{}
	for _, p := range own {
		pids[p.Folder] = p.Identity.PID
	}
	if len(r.growth) > 0 {
		line("grew most, from a process's first dump (its start, if it made only one) to its last:")
		for _, g := range r.growth {
			line("%12s  %s", "+"+bytesText(g.Bytes()), stackText(g))
			if len(own) > 1 {
				line("%12s  in process %d", "", pids[g.Folder])
			}
		}
	}
	const mostVerdicts = 5
	helped := map[string]bool{}
	for i, v := range r.verdicts {
		if i == mostVerdicts {
			line("and %d more; heapwire growth tells all", len(r.verdicts)-i)
			break
		}
		of := ""
		if pid, ok := pids[v.Process]; ok && len(own) > 1 {
			of = fmt.Sprintf(" (process %d)", pid)
		}
		line("%s: %s%s", v.Kind, v.Says, of)
		if !helped[v.Helps] {
			line("    %s", v.Helps)
		}
		helped[v.Helps] = true
	}
	for _, p := range own {
		for _, giant := range p.Giants {
			line("process %d: %s", p.Identity.PID, giant)
		}
	}
	for _, p := range append(own, folders...) {
		for _, oom := range p.OOMs {
			if p.Snapshots != "" {
				line("%s", oom)
			} else {
				line("process %d: %s", p.Identity.PID, oom)
			}
		}
	}
	for _, p := range r.processes {
		if p.Left != "" && (r.verbose || p.Left == "still running" || r.left != "") {
			line("process %d: %s; its folder is left: %s", p.Identity.PID, p.Left, filepath.Join(r.left, p.Folder))
		}
	}
	if r.left != "" {
		line("left in the spool: %s", r.left)
	}
	if r.err != nil && !errors.Is(r.err, exporter.ErrUndelivered) {
		line("%s", strings.ReplaceAll(r.err.Error(), "\n", "; "))
	}
	return b.String()
}

func (r *report) refused() string {
	var text string
	if n := r.stats.ConvertFailed; n > 0 {
		text += fmt.Sprintf(", %d unreadable and set aside", n)
	}
	if n := r.stats.Warnings; n > 0 && !r.verbose {
		text += fmt.Sprintf(", %s (--verbose shows all)", count(n, "warning", "warnings"))
	}
	return text
}

func (r *report) sink(s exporter.SinkStats) string {
	if s.EventsOnly {
		return fmt.Sprintf("%s: %s delivered, %d refused or given up", s.Name, count(s.Events, "event", "events"), s.GivenUp)
	}
	text := fmt.Sprintf("%s: %d delivered", s.Name, s.Accepted)
	if s.Name == "file" && r.out != "" {
		text += " to " + r.out
	}
	if s.GivenUp > 0 {
		text += fmt.Sprintf(", %d refused or given up", s.GivenUp)
	}
	if open := r.stats.Dumps - r.stats.ConvertFailed - r.dropped() - s.Accepted - s.GivenUp; open > 0 {
		text += fmt.Sprintf(", %d not delivered", open)
	}
	return text
}

func (r *report) dropped() (n int) {
	for _, dropped := range r.stats.Dropped {
		n += dropped
	}
	return n
}

// parts splits the live heap by process, if there are several, but not many.
func (r *report) parts(own []exporter.Process) string {
	const most = 8
	if len(own) < 2 || len(own) > most {
		if len(own) > most {
			return fmt.Sprintf(" in %d processes", len(own))
		}
		return ""
	}
	var parts []string
	for _, p := range own {
		parts = append(parts, fmt.Sprintf("%d: %s", p.Identity.PID, bytesText(p.Live)))
	}
	return " (process " + strings.Join(parts, ", ") + ")"
}

// stackText names the line that grew, what it called natively, and who called it.
func stackText(g exporter.Growth) string {
	return g.Text(func(f stack.Frame) string { return place(f.Function, relative(f.File), f.Line) })
}

// relative shortens a path below the working directory.
func relative(path string) string {
	wd, err := os.Getwd()
	if err != nil || !filepath.IsAbs(path) {
		return path
	}
	if rel, err := filepath.Rel(wd, path); err == nil && !strings.HasPrefix(rel, "..") {
		return rel
	}
	return path
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
