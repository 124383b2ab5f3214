// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/pprof/profile"
	"github.com/spf13/cobra"

	"github.com/heapwire/heapwire/convert/compare"
	"github.com/heapwire/heapwire/convert/symbol"
	"github.com/heapwire/heapwire/convert/torchmem"
	"github.com/heapwire/heapwire/exporter/file"
	"github.com/heapwire/heapwire/exporter/sink"
	"github.com/heapwire/heapwire/exporter/spool"
)

// found is one profile among those that a command compares.
type found struct {
	path    string
	process string // who it is of, and of which device
	rank    string
	time    time.Time
	seq     uint64
	reason  string
	step    int64 // -1 if not known
	profile *profile.Profile
	figures map[string]int64
	giants  []string
	// judged is what is said of a snapshot of device memory by itself.
	judged []compare.Verdict
}

var (
	// processFolder is a process's in a spool, or in the files that the file sink writes.
	processFolder = regexp.MustCompile(`^.+-[0-9]+-[0-9]+$`)
	// sinkFile is a profile of the file sink: sequence, reason, and what tells it from live host memory.
	sinkFile = regexp.MustCompile(`^([0-9]{6,19})\.([a-z][a-z0-9_-]*)((?:\.[A-Za-z0-9_-]+)*)\.pb\.gz$`)
	// jemallocFile is what jemalloc calls a dump: prefix, pid, sequence, what set it off.
	jemallocFile = regexp.MustCompile(`^(.+)\.([0-9]+)\.([0-9]+)\.([imuf])[0-9]*\.heap$`)
)

// gather reads all dumps that the paths name, folders with all that is in them. Each goes to use as soon as it is read, so that
// no more than one is in memory, in the order in which the dumps of a process were taken as far as names and times tell. A file
// that cannot be read costs itself only; the number of those that could is returned.
func gather(cmd *cobra.Command, paths []string, root string, use func(*found) error) (int, error) {
	var files []string
	for _, path := range paths {
		some, err := below(path)
		if err != nil {
			return 0, err
		}
		files = append(files, some...)
	}
	slices.SortStableFunc(files, byAge)
	symbols := &symbol.Resolver{Root: root}
	read := 0
	var failed error
	for _, path := range files {
		if skipped(path) {
			continue
		}
		in, err := readInput(path, cmd.InOrStdin(), symbols, newProgress(cmd.ErrOrStderr()))
		if err != nil {
			if len(files) == 1 {
				return 0, err
			}
			failed = cmp.Or(failed, err)
			fmt.Fprintf(cmd.ErrOrStderr(), "heapwire: %s: left out\n", oneLine(err.Error()))
			continue
		}
		for _, w := range in.warnings {
			fmt.Fprintf(cmd.ErrOrStderr(), "heapwire: warning: %s\n", oneLine(w))
		}
		all, err := foundIn(in)
		if err != nil {
			return read, err
		}
		for _, f := range all {
			if err := use(f); err != nil {
				return read, err
			}
		}
		read++
	}
	if read == 0 {
		return 0, cmp.Or(failed, fmt.Errorf("%s: no dump to read", strings.Join(paths, ", ")))
	}
	return read, nil
}

// byAge orders files by process, then by sequence where both names have one, then by when they were written.
func byAge(a, b string) int {
	if c := cmp.Compare(processOf(a), processOf(b)); c != 0 {
		return c
	}
	x, y := seqOf(a), seqOf(b)
	if x > 0 && y > 0 && x != y {
		return cmp.Compare(x, y)
	}
	s, err1 := os.Stat(a)
	t, err2 := os.Stat(b)
	if err1 == nil && err2 == nil && !s.ModTime().Equal(t.ModTime()) {
		return s.ModTime().Compare(t.ModTime())
	}
	return cmp.Compare(a, b)
}

func seqOf(path string) uint64 {
	name := filepath.Base(path)
	m := dumpFile.FindStringSubmatch(name)
	at := 1
	if m == nil {
		m, at = jemallocFile.FindStringSubmatch(name), 3
	}
	if m == nil {
		return 0
	}
	n, _ := strconv.ParseUint(m[at], 10, 64)
	return n + 1
}

// processOf tells whose a dump is by its path.
func processOf(path string) string {
	dir, name := filepath.Split(filepath.Clean(path))
	dir = filepath.Clean(dir)
	if filepath.Base(dir) == spool.DeliveredFolder {
		dir = filepath.Dir(dir)
	}
	if m := jemallocFile.FindStringSubmatch(name); m != nil {
		return filepath.Join(dir, m[1]+"."+m[2])
	}
	if n := torchmem.ParseFileName(path); n.PID > 0 {
		return fmt.Sprintf("rank %d, pid %d", n.Rank, n.PID) // verl's: a folder a step
	}
	if abs, err := filepath.Abs(dir); err == nil && processFolder.MatchString(filepath.Base(abs)) {
		return filepath.Base(abs)
	}
	return dir
}

// skipped are files of the file sink with another view of a device's memory than what lives.
func skipped(path string) bool {
	m := sinkFile.FindStringSubmatch(filepath.Base(path))
	if m == nil || m[3] == "" {
		return false
	}
	view := m[3][strings.LastIndexByte(m[3], '.')+1:]
	return view != "live" && slices.Contains(torchmem.Views, view)
}

// foundIn makes of a file read what is compared: a snapshot has a profile for each device.
func foundIn(in *input) ([]*found, error) {
	f := &found{path: in.path, process: processOf(in.path), seq: in.meta.Seq, reason: in.meta.Reason, step: -1, figures: in.meta.Figures, giants: in.giants}
	dir := filepath.Dir(in.path)
	if filepath.Base(dir) == spool.DeliveredFolder {
		dir = filepath.Dir(dir)
	}
	var id sink.Identity
	if read, ok := identityIn(dir); ok {
		id = read
	}
	f.rank = id.Rank
	if in.meta.Step != nil {
		f.step = *in.meta.Step
	}
	if in.snapshot != nil {
		return snapshotIn(f, in)
	}
	f.profile = in.profile
	if notes := file.NotesOf(in.profile); notes.Reason != "" {
		f.seq, f.reason, f.figures, f.giants = notes.Seq, notes.Reason, notes.Figures, notes.Giants
		f.rank = cmp.Or(f.rank, notes.Rank)
		if step, ok := notes.Figures["step"]; ok {
			f.step = step
		}
	}
	if m := sinkFile.FindStringSubmatch(filepath.Base(in.path)); m != nil {
		f.process += strings.ReplaceAll(m[3], ".", " ")
	}
	f.time = in.time()
	return []*found{f.dated()}, nil
}

func snapshotIn(f *found, in *input) ([]*found, error) {
	name := torchmem.ParseFileName(in.path)
	if name.Rank >= 0 {
		f.rank = strconv.FormatInt(name.Rank, 10)
	}
	f.step = name.Step
	if side := in.sidecar; side != nil {
		f.reason = side.Reason
		f.step = max(f.step, side.Step)
		if f.rank == "" && side.Rank >= 0 {
			f.rank = strconv.FormatInt(side.Rank, 10)
		}
	}
	f.time = in.time()
	var out []*found
	for _, d := range in.snapshot.Devices {
		one := *f
		var err error
		if one.profile, err = in.snapshot.View("live", d.Name); err != nil {
			return nil, fmt.Errorf("%s: %w", in.path, err)
		}
		one.process += " " + d.Name
		one.judged = compare.Device(d)
		out = append(out, one.dated())
	}
	return out, nil
}

// dated gives a dump that does not say when it was taken the time of its file.
func (f *found) dated() *found {
	if f.time.IsZero() {
		if info, err := os.Stat(f.path); err == nil {
			f.time = info.ModTime()
		}
	}
	return f
}

// snapshotOf is what comparisons remember of it.
func (f *found) snapshotOf() compare.Snapshot {
	s := compare.SnapshotOf(f.profile)
	s.Time, s.Seq, s.Reason, s.Step, s.Figures = f.time, f.seq, f.reason, f.step, f.figures
	return s
}
