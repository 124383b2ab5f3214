// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/compare"
	"github.com/heapwire/heapwire/convert/torchmem"
	"github.com/heapwire/heapwire/exporter/sink"
)

// Parts is what a dump becomes: one profile of a heap dump; of a snapshot one for each device and view, and what is told
// beside them. Names tells the parts apart, Items first, and is the same whenever the dump is converted.
type Parts struct {
	Items  []*sink.Item
	Events []*sink.Event
	Names  []string
	OOMs   []string // a line each, for a person
	// Verdicts are those on each device that the snapshot has, by its name.
	Verdicts map[string][]compare.Verdict
}

// SnapshotSource says of a snapshot what the sinks must know and it does not say itself.
type SnapshotSource struct {
	// Item has Identity, Process, Base, Seq and Reason; Time is the file's, for snapshots without times.
	sink.Item
	// Kind of the devices, where nothing in the snapshot tells.
	Kind string
	// Sidecar is what the JSON beside the snapshot says, FileName what its path tells. Sidecar may be nil.
	Sidecar  *torchmem.Sidecar
	FileName torchmem.FileName
	// ID derives the id of a profile; the same view of the same device of the same snapshot has the same id always.
	ID func(kind, view string) [16]byte
	// First says whether this snapshot is the one that tells of an error: snapshots that follow each other have it all. Nil
	// tells all. Key is the error's; newest says that it is what this snapshot was taken for, and none of those before it has.
	First func(key string, newest bool) bool
	// Observed goes into the events.
	Observed time.Time
}

// FileSource is the source of a snapshot that lies somewhere in a folder, not in a spool. id is of whoever made it, as far as
// that is known; rank and process come from the file's name.
func FileSource(id sink.Identity, path string, size int64, modified, now time.Time) SnapshotSource {
	return namedSource(torchmem.ParseFileName(path), id, path, size, modified, now)
}

func namedSource(name torchmem.FileName, id sink.Identity, path string, size int64, modified, now time.Time) SnapshotSource {
	process := "snapshots"
	if name.PID > 0 {
		id.PID = int(name.PID)
		process = fmt.Sprintf("pid%d", name.PID)
	}
	if name.Rank >= 0 {
		id.Rank = strconv.FormatInt(name.Rank, 10)
		process = fmt.Sprintf("rank%d-%s", name.Rank, process)
	}
	folder, file := filepath.Split(filepath.Clean(path))
	folder = filepath.Base(folder)
	base := torchmem.Stem(file)
	if name.Step >= 0 || name.Reason == "oom" && strings.HasPrefix(folder, "oom_") {
		base = folder + "." + base
	}
	from := SnapshotSource{
		Item:     sink.Item{Identity: id, Process: process, Base: strings.TrimLeft(notForNames.ReplaceAllString(base, "_"), "."), Reason: name.Reason, Time: modified},
		FileName: name, Kind: name.Kind, Observed: now,
		// The same file has the same ids wherever it is found.
		ID: func(kind, view string) [16]byte {
			return sink.ProfileID("snapshot "+folder+"/"+file, id.PID, uint64(modified.UnixNano()), uint64(size), kind, view)
		},
	}
	if !name.Time.IsZero() {
		from.Time = name.Time
	}
	if from.Base == "" {
		from.Base = "snapshot"
	}
	if from.Reason == "" {
		from.Reason = "file"
	}
	return from
}

var notForNames = regexp.MustCompile(`[^A-Za-z0-9._-]`)

// SnapshotParts makes the profiles, events and gauges of a snapshot. With a nil snapshot, they are those of the sidecar.
func SnapshotParts(s *torchmem.Snapshot, from SnapshotSource) (*Parts, error) {
	if side := from.Sidecar; side != nil {
		if side.Reason != "" {
			from.Reason = side.Reason
		}
		if from.Identity.Rank == "" && side.Rank >= 0 {
			from.Identity.Rank = strconv.FormatInt(side.Rank, 10)
		}
	}
	b := &partsBuilder{from: from, parts: &Parts{Verdicts: map[string][]compare.Verdict{}}}
	b.origin = sink.Snapshot{Seq: from.Seq, Reason: from.Reason, Kind: from.Kind, Step: from.FileName.Step, Steps: from.FileName.Window}
	if side := from.Sidecar; side != nil {
		if side.Step >= 0 {
			b.origin.Step = side.Step
		}
		if side.Window != "" {
			b.origin.Steps = side.Window
		}
	}
	if s == nil {
		b.alone()
		return b.parts, nil
	}
	for _, d := range s.Devices {
		if err := b.device(s, d); err != nil {
			return nil, err
		}
	}
	if len(b.parts.Items) == 0 {
		// Nothing to show is shown: the figures need an item to go with.
		p, err := s.View("live", "")
		if err != nil {
			return nil, err
		}
		b.item(p, from.Kind, "", "live", "live", from.Base)
	}
	first := b.parts.Items[0]
	for _, m := range s.Metrics() {
		first.Gauges = append(first.Gauges, sink.Gauge(m))
	}
	if b.origin.Step >= 0 {
		first.Figures = map[string]int64{"step": b.origin.Step}
	}
	for _, e := range b.events {
		b.parts.Events = append(b.parts.Events, e.event)
		b.parts.Names = append(b.parts.Names, e.name)
	}
	return b.parts, nil
}

type partsBuilder struct {
	from   SnapshotSource
	origin sink.Snapshot
	parts  *Parts
	events []namedEvent
}

type namedEvent struct {
	name  string
	event *sink.Event
}

func (b *partsBuilder) item(p *profile.Profile, kind, device, view, id, base string) *sink.Item {
	it := b.from.Item
	it.Base, it.Kind, it.Device, it.View, it.Profile, it.Duration = base, kind, device, view, p, 0
	if p.TimeNanos != 0 {
		it.Time = time.Unix(0, p.TimeNanos).UTC()
	}
	it.ProfileID = b.from.ID(kind, id)
	b.parts.Items = append(b.parts.Items, &it)
	b.parts.Names = append(b.parts.Names, id)
	return &it
}

func (b *partsBuilder) tell(name string, ev *sink.Event) {
	ev.Identity, ev.Process, ev.Observed = b.from.Identity, b.from.Process, b.from.Observed
	b.events = append(b.events, namedEvent{name, ev})
}

func (b *partsBuilder) device(s *torchmem.Snapshot, d *torchmem.Device) error {
	origin := b.origin
	origin.Kind, origin.Device = d.Kind, d.Name
	for i, o := range d.OOMs {
		last := i == len(d.OOMs)-1
		side := b.from.Sidecar
		newest := last && side != nil && side.Reason == "oom" && (side.Device == d.Name || side.Device == "")
		// Without times, two errors that look the same may be two.
		if b.from.First != nil && !b.from.First(b.key(s, o), newest && s.Start.IsZero()) {
			continue
		}
		p, err := s.OOMView(o)
		if err != nil {
			return err
		}
		at, base := "oom@"+d.Name+"#"+strconv.FormatInt(o.Index, 10), b.from.Base
		if !last {
			base += ".event" + strconv.FormatInt(o.Index, 10)
		}
		it := b.item(p, d.Kind, d.Name, "oom", at, base)
		told := oomOf(o, origin, it.ProfileID)
		if newest {
			told.Count, told.Skipped, told.Thread = side.OOMCount, side.Skipped, side.Thread
		}
		b.tell(at+"!", &sink.Event{OOM: told})
		b.parts.OOMs = append(b.parts.OOMs, o.Line())
	}
	for _, view := range torchmem.Views {
		if view == "oom" || !s.Has(view, d.Name) && view != "live" {
			continue
		}
		p, err := s.View(view, d.Name)
		if err != nil {
			return err
		}
		b.item(p, d.Kind, d.Name, view, view+"@"+d.Name, b.from.Base)
	}
	judged := compare.Device(d)
	b.parts.Verdicts[d.Name] = judged
	for i, v := range judged {
		at := s.Time
		if at.IsZero() {
			at = b.from.Time
		}
		b.tell(fmt.Sprintf("verdict%d@%s", i, d.Name), &sink.Event{Verdict: verdictOf(v, origin, at, [16]byte{})})
	}
	if d.WindowTruncated {
		w := &sink.Window{
			Snapshot: origin, Time: s.Time, Events: d.Events, StaleFrees: d.StaleFrees, StaleBytes: d.StaleBytes,
			Overflowed: s.Settings.WindowOverflowed, MaxEntries: -1,
		}
		if side := b.from.Sidecar; side != nil {
			w.MaxEntries = side.MaxEntries
		}
		b.tell("window@"+d.Name, &sink.Event{Window: w})
	}
	return nil
}

// alone tells of an error that has no snapshot.
func (b *partsBuilder) alone() {
	side := b.from.Sidecar
	origin := b.origin
	origin.Device = side.Device
	if side.DeviceKind != "" {
		origin.Kind = side.DeviceKind
	}
	if o := side.OOM(); o != nil {
		told := oomOf(o, origin, [16]byte{})
		told.Count, told.Skipped, told.Thread, told.AfterUnwinding, told.LiveAtDump = side.OOMCount, side.Skipped, side.Thread, false, -1
		told.LargestHole = -1
		if len(side.MemoryStats[side.Device]) == 0 {
			told.Live, told.LiveObjects, told.Reserved, told.Inactive = -1, -1, -1, -1
		}
		if side.Free < 0 {
			told.Free = -1
		}
		if told.Missing = side.Error; told.Missing == "" {
			told.Missing = "the process ended before it was written"
		}
		name := "oom@" + side.Device
		b.tell(name, &sink.Event{OOM: told})
		b.parts.Events, b.parts.Names = []*sink.Event{b.events[0].event}, []string{name}
		b.parts.OOMs = []string{o.Line() + "; no snapshot: " + told.Missing}
	}
}

func oomOf(o *torchmem.OOM, origin sink.Snapshot, id [16]byte) *sink.OOM {
	known := func(v int64) int64 {
		if v <= 0 {
			return -1
		}
		return v
	}
	told := &sink.OOM{
		Snapshot: origin, Time: o.Time, ProfileID: id, Requested: o.Requested, Free: o.Free, Total: known(o.Total), Limit: known(o.Limit),
		Live: o.Live, LiveObjects: o.LiveObjects, Reserved: o.Reserved, Inactive: o.Inactive, LargestHole: o.LargestHole,
		AfterUnwinding: o.Unwound, LiveAtDump: o.LiveAtDump, Count: -1, Skipped: -1, Stack: lines(o.Stack),
	}
	for _, t := range o.Top {
		told.Top = append(told.Top, sink.Held{Bytes: t.Bytes, Frames: lines(t.Stack[:min(len(t.Stack), topFrames)])})
	}
	return told
}

// lines are frames as events tell them, with the whole path of the file.
func lines(frames []torchmem.Frame) []string {
	const most = 256
	var out []string
	for _, f := range frames[:min(len(frames), most)] {
		text := f.Name
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

// key names an error across the snapshots that have it: by its time, or, where the writer notes none, by all else.
func (b *partsBuilder) key(s *torchmem.Snapshot, o *torchmem.OOM) string {
	what := fmt.Sprint(b.from.Identity.PID, " ", o.Device, " ")
	if s.Start.IsZero() || o.Index < 0 {
		what += fmt.Sprint(o.Requested, o.Free, o.Live, lines(o.Stack))
	} else {
		what += strconv.FormatInt(o.Time.UnixMicro(), 10)
	}
	sum := sha256.Sum256([]byte(what))
	return hex.EncodeToString(sum[:6])
}

// told remembers which snapshot told of which error, beyond a reader's life.
type told map[string]string // key → dump

const maxTold = 64

// first says whether dump is the one to tell of an error, and makes it the one if nobody is.
func (t *told) first(key, dump string, newest bool) bool {
	if by, ok := (*t)[key]; ok && !newest {
		return by == dump
	}
	if *t == nil {
		*t = told{}
	}
	for len(*t) >= maxTold {
		// Dumps are named by their numbers: the oldest goes.
		oldest := slices.MinFunc(slices.Collect(maps.Keys(*t)), func(a, b string) int { return strings.Compare((*t)[a]+a, (*t)[b]+b) })
		delete(*t, oldest)
	}
	(*t)[key] = dump
	return true
}
