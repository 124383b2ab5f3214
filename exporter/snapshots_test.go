// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/heapwire/heapwire/convert/torchmem"
	"github.com/heapwire/heapwire/convert/torchmem/snapgen"
	"github.com/heapwire/heapwire/exporter/sink"
	"github.com/heapwire/heapwire/exporter/spool"
)

func pickled(t *testing.T, o snapgen.Options) string {
	t.Helper()
	var b bytes.Buffer
	if err := snapgen.Generate(o).Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// outOfMemory is a snapshot with one error, and a window that begins late.
func outOfMemory(t *testing.T) string {
	t.Helper()
	return pickled(t, snapgen.Options{OOM: true, Capacity: 8 << 30})
}

const oomJSON = `{"reason": "oom", "device_kind": "cuda", "device": "cuda:0", "total_bytes": 8589934592, "free_bytes": 0, "step": 12, "rank": 7,
 "oom_count": 2, "skipped": 1, "thread": "trainer", "memory_stats": {"cuda:0": {"num_alloc_retries": 4}}, "history": {"overflowed": true, "max_entries": 100}}`

// views names the profiles that a sink got of snapshots, "base kind device view" each.
func (m *memory) views() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, it := range m.items {
		if it.Kind != hostKind {
			out = append(out, fmt.Sprintf("%s %s %s", it.Base, it.Device, it.View))
		}
	}
	return out
}

func ids(items []*sink.Item) map[[16]byte]bool {
	out := map[[16]byte]bool{}
	for _, it := range items {
		out[it.ProfileID] = true
	}
	return out
}

func TestASnapshotBecomesAProfileForEachView(t *testing.T) {
	p := newPlace(t)
	one := p.folder(4194301, 1, "000001.interval.heap", "a=10", "000002.oom.cuda.json", oomJSON, "000002.oom.cuda.pickle", outOfMemory(t), "000003.exit.heap", "a=20")
	m, logs := &memory{name: "m"}, &mourners{name: "logs"}
	pipeline := p.start(listening(logs), m)
	p.finish(pipeline)

	views := m.views()
	for _, view := range []string{"oom", "live", "peak", "reserved", "alloc", "inactive", "holders", "rounding", "survivors"} {
		if !slices.Contains(views, "000002.oom cuda:0 "+view) {
			t.Errorf("no profile of %s among %q", view, views)
		}
	}
	if n := len(slices.Compact(slices.Sorted(slices.Values(views)))); n != len(views) || len(ids(m.items)) != n+2 {
		t.Errorf("%d profiles with %d names and %d ids", len(m.items), n+2, len(ids(m.items)))
	}
	if stats := pipeline.Stats(); stats.Dumps != 3 || stats.Converted != 3 || stats.Pending != 0 || pipeline.sinkStats("m").Accepted != 3 || pipeline.sinkStats("logs").Events != 2 {
		t.Errorf("%+v", stats)
	}
	var oom *sink.Item
	gauges := map[string]int64{}
	for _, it := range m.items {
		if it.View == "oom" {
			oom = it
		}
		for _, g := range it.Gauges {
			if _, twice := gauges[g.Name]; twice && g.Device == "cuda:0" {
				t.Errorf("gauge %s twice", g.Name)
			}
			gauges[g.Name] = g.Value
		}
	}
	if gauges["heapwire.device.memory.stats.num_alloc_retries"] != 4 || gauges["hw.gpu.memory.usage"] != 8<<30 || gauges["heapwire.device.memory.window.ooms"] != 1 || gauges["heapwire.device.memory.reserved"] == 0 {
		t.Errorf("gauges %v", gauges)
	}
	if oom.Seq != 2 || oom.Reason != "oom" || oom.Identity.Rank != "3" || oom.Identity.ServiceName != "trainer" || oom.Process != one || oom.Figures["step"] != 12 {
		t.Errorf("%+v", oom)
	}
	events := logs.got()
	o, w := events[0].OOM, events[1].Window
	if o == nil || w == nil {
		t.Fatalf("%+v", events)
	}
	if o.ProfileID != oom.ProfileID || o.Total != 8<<30 || o.Free < 0 || o.Limit != -1 || o.Live == 0 || o.Reserved == 0 || len(o.Top) != 3 || len(o.Stack) == 0 || o.Step != 12 ||
		o.Count != 2 || o.Skipped != 1 || o.Thread != "trainer" || o.Kind != "cuda" || o.Device != "cuda:0" || o.Seq != 2 {
		t.Errorf("%+v", o)
	}
	if !w.Overflowed || w.MaxEntries != 100 || w.Events == 0 || w.Device != "cuda:0" {
		t.Errorf("%+v", w)
	}
	if got := pipeline.Processes(); len(got) != 1 || len(got[0].OOMs) != 1 || !strings.HasPrefix(got[0].OOMs[0], "out of memory on cuda:0: ") || got[0].Reason != "exit" {
		t.Errorf("%+v", got)
	}
	if !strings.Contains(p.logs.String(), "out of memory on cuda:0: ") {
		t.Error("nobody was told at once")
	}
	if _, err := os.Stat(filepath.Join(p.path, one)); !os.IsNotExist(err) {
		t.Errorf("left: %v", p.files(one))
	}
}

// Without the JSON, and with one that cannot be read, the snapshot is delivered.
func TestASnapshotWithoutItsJSONIsDelivered(t *testing.T) {
	for name, side := range map[string]string{"none": "", "odd": "{", "wrong": `{"step": "x"}`} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			files := []string{"000002.steps4-5.cuda.pickle", pickled(t, snapgen.Options{Whole: true})}
			if side != "" {
				files = append(files, "000002.steps4-5.cuda.json", side)
			}
			one := p.folder(4194301, 1, files...)
			m, logs := &memory{name: "m"}, &mourners{name: "logs"}
			p.finish(p.start(listening(logs), m))
			if len(m.views()) < 5 || len(logs.got()) != 0 || m.items[0].Reason != "steps4-5" {
				t.Errorf("%q, %d events", m.views(), len(logs.got()))
			}
			if (side != "") != strings.Contains(p.logs.String(), "the JSON beside it") {
				t.Error(p.logs.String())
			}
			if _, err := os.Stat(filepath.Join(p.path, one)); !os.IsNotExist(err) {
				t.Errorf("left: %v", p.files(one))
			}
		})
	}
}

// The process was killed, or its disk was full, before the snapshot was written: the error is told.
func TestAnErrorWithoutItsSnapshotIsTold(t *testing.T) {
	for why, text := range map[string]string{
		"the process ended before it was written": oomJSON,
		"disk full": strings.Replace(oomJSON, "{", `{"error": "disk full", `, 1),
	} {
		p := newPlace(t)
		one := p.folder(4194301, 1, "000002.oom.cuda.json", text)
		m, logs := &memory{name: "m"}, &mourners{name: "logs"}
		pipeline := p.start(listening(logs), m)
		p.finish(pipeline)
		events := logs.got()
		if len(events) != 1 || events[0].OOM == nil || events[0].OOM.Missing != why || events[0].OOM.ProfileID != ([16]byte{}) || events[0].OOM.Total != 8<<30 || len(m.items) != 0 {
			t.Fatalf("%+v and %d profiles", events, len(m.items))
		}
		if got := pipeline.Processes()[0].OOMs; len(got) != 1 || !strings.HasSuffix(got[0], "no snapshot: "+why) {
			t.Errorf("%q", got)
		}
		if _, err := os.Stat(filepath.Join(p.path, one)); !os.IsNotExist(err) {
			t.Errorf("left: %v", p.files(one))
		}
	}
}

// While the process lives, its snapshot may still come.
func TestAJSONAloneWaitsForItsSnapshot(t *testing.T) {
	p := newPlace(t)
	one := p.living()
	side := filepath.Join(p.path, one, "000002.oom.cuda.json")
	if err := os.WriteFile(side, []byte(oomJSON), 0o600); err != nil {
		t.Fatal(err)
	}
	p.dump(one, 3, "interval", "a=1")
	m, logs := &memory{name: "m"}, &mourners{name: "logs"}
	pipeline := p.start(listening(logs), m)
	p.until("the dump after it is delivered", func() bool { return len(m.got()) == 1 })
	p.until("it was looked at twice more", func() bool { return pipeline.Stats().Dumps == 1 })
	if len(logs.got()) != 0 {
		t.Fatal("told too early")
	}
	if err := os.WriteFile(filepath.Join(p.path, one, "making"), []byte(outOfMemory(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(p.path, one, "making"), filepath.Join(p.path, one, "000002.oom.cuda.pickle")); err != nil {
		t.Fatal(err)
	}
	p.until("the snapshot is delivered", func() bool { return len(logs.got()) == 2 && len(m.views()) > 5 })
	p.finish(pipeline)
	if got := p.files(one); len(got) != 0 {
		t.Errorf("left: %q", got)
	}
}

// Each snapshot of a process has the errors of those before it: each error is told once.
func TestAnErrorIsToldByOneSnapshot(t *testing.T) {
	p := newPlace(t)
	same := outOfMemory(t)
	p.folder(4194301, 1, "000002.oom.cuda.pickle", same, "000002.oom.cuda.json", oomJSON, "000004.steps4-5.cuda.pickle", same)
	m, logs := &memory{name: "m"}, &mourners{name: "logs"}
	p.finish(p.start(listening(logs), m))
	told := func() (ooms int, profiles []string) {
		for _, ev := range logs.got() {
			if ev.OOM != nil {
				ooms++
			}
		}
		for _, v := range m.views() {
			if strings.HasSuffix(v, " oom") {
				profiles = append(profiles, v)
			}
		}
		return ooms, profiles
	}
	if n, profiles := told(); n != 1 || !slices.Equal(profiles, []string{"000002.oom cuda:0 oom"}) {
		t.Errorf("%d records and %q", n, profiles)
	}
	// By the next reader neither, which gets a third with the same error.
	one := p.living()
	put := func(name string) {
		t.Helper()
		making := filepath.Join(p.path, one, ".1.tmp")
		if err := errors.Join(os.WriteFile(making, []byte(same), 0o600), os.Rename(making, filepath.Join(p.path, one, name))); err != nil {
			t.Fatal(err)
		}
	}
	put("000002.oom.cuda.pickle")
	p.finish(p.start(nil, &memory{name: "m"}))
	put("000004.steps4-5.cuda.pickle")
	m, logs = &memory{name: "m"}, &mourners{name: "logs"}
	p.finish(p.start(listening(logs), m))
	if n, profiles := told(); n != 0 || len(profiles) != 0 || len(m.views()) == 0 {
		t.Errorf("the next reader: %d records and %q of %q", n, profiles, m.views())
	}
}

// A reader that is killed in the middle of a snapshot: the next one sends what is missing, and that only.
func TestWhatASinkHasOfASnapshotIsNotSentAgain(t *testing.T) {
	p := newPlace(t)
	one := p.folder(4194301, 1, "000002.oom.cuda.pickle", outOfMemory(t))
	const some = 4
	half := &memory{name: "m", export: func(_ context.Context, attempt int, _ *sink.Item) error {
		if attempt > some {
			return errors.New("connection refused")
		}
		return nil
	}}
	first := p.start(nil, half)
	p.until("some are accepted and one is refused", func() bool { return half.tries() > some })
	p.halt(first)
	if len(p.files(one)) != 1 {
		t.Fatalf("left: %q", p.files(one))
	}
	rest, logs := &memory{name: "m"}, &mourners{name: "logs"}
	p.finish(p.start(listening(logs), rest))
	all, again := append(half.views(), rest.views()...), ids(half.items)
	for id := range ids(rest.items) {
		if again[id] {
			t.Errorf("profile %x was sent twice", id)
		}
	}
	if len(half.views()) != some || len(all) != len(slices.Compact(slices.Sorted(slices.Values(all)))) || len(all) < some+3 || len(logs.got()) != 1 {
		t.Errorf("first %q, then %q, %d events", half.views(), rest.views(), len(logs.got()))
	}
	if _, err := os.Stat(filepath.Join(p.path, one)); !os.IsNotExist(err) {
		t.Errorf("left: %v", p.files(one))
	}
}

// A view that a sink will never take keeps no other from it.
func TestARefusedViewKeepsNoOtherBack(t *testing.T) {
	p := newPlace(t)
	p.folder(4194301, 1, "000002.oom.cuda.pickle", outOfMemory(t))
	picky, other := &memory{name: "picky", export: func(_ context.Context, _ int, it *sink.Item) error {
		if it.View == "peak" {
			return sink.Permanent(errors.New("no peaks"))
		}
		return nil
	}}, &memory{name: "other"}
	pipeline := p.start(nil, picky, other)
	p.finish(pipeline)
	if s := pipeline.sinkStats("picky"); s.GivenUp != 1 || s.Refused != 1 || s.Accepted != 0 {
		t.Errorf("%+v", s)
	}
	want := slices.DeleteFunc(other.views(), func(v string) bool { return strings.HasSuffix(v, " peak") })
	if got := picky.views(); !slices.Equal(got, want) || len(want) == len(other.views()) {
		t.Errorf("got %q, want %q", got, want)
	}
	if !strings.Contains(p.logs.String(), "no peaks") {
		t.Error(p.logs.String())
	}
}

func TestWhatIsNoSnapshotIsSetAside(t *testing.T) {
	p := newPlace(t)
	one := p.folder(4194301, 1, "000001.oom.cuda.pickle", "\x80\x04cos\nsystem\n.", "000001.oom.cuda.json", oomJSON, "000002.api.cuda.pickle", "\x80\x04N.", "000003.exit.heap", "a=1")
	m := &memory{name: "m"}
	pipeline := p.start(nil, m)
	p.finish(pipeline)
	if s := pipeline.Stats(); s.ConvertFailed != 2 || s.Converted != 1 || s.Pending != 0 {
		t.Errorf("%+v", s)
	}
	want := []string{
		"000001.oom.cuda.json.rejected", "000001.oom.cuda.pickle.rejected", "000001.oom.cuda.pickle.rejected.txt",
		"000002.api.cuda.pickle.rejected", "000002.api.cuda.pickle.rejected.txt",
	}
	if got := p.files(one); !slices.Equal(got, want) {
		t.Errorf("left %q, want %q", got, want)
	}
}

// A snapshot that takes its time holds back neither the dumps of its own process nor those of others.
func TestALargeSnapshotHoldsNobodyBack(t *testing.T) {
	p := newPlace(t)
	one := p.folder(4194301, 1, "000001.oom.cuda.pickle", outOfMemory(t), "000002.interval.heap", "a=1")
	p.folder(4194302, 1, "000001.exit.heap", "b=1")
	slow := &memory{name: "m"}
	pipeline := p.pipeline(nil, slow)
	// The only places for conversions are taken: the snapshot waits, as behind a larger one.
	for range cap(pipeline.slots) {
		pipeline.slots <- struct{}{}
	}
	pipeline.Start()
	p.until("the dumps are delivered", func() bool { return len(slow.got()) == 2 })
	if views := slow.views(); len(views) != 0 || len(p.files(one)) == 0 {
		t.Fatalf("%q before its time", views)
	}
	p.dump(one, 3, "interval", "a=2")
	p.until("so is a later one", func() bool { return len(slow.got()) == 3 })
	for range cap(pipeline.slots) {
		<-pipeline.slots
	}
	p.finish(pipeline)
	if len(slow.views()) < 5 {
		t.Errorf("then %q", slow.views())
	}
}

// A reader that is told to stop does so in the middle of a snapshot, which stays.
func TestStoppingDoesNotWaitForASnapshot(t *testing.T) {
	p := newPlace(t)
	one := p.folder(4194301, 1, "000001.oom.cuda.pickle", outOfMemory(t))
	m := &memory{name: "m"}
	pipeline := p.pipeline(nil, m)
	for range cap(pipeline.slots) {
		pipeline.slots <- struct{}{}
	}
	pipeline.Start()
	p.until("the snapshot is found", func() bool { return pipeline.Stats().Pending == 1 })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := pipeline.Shutdown(ctx); !errors.Is(err, ErrUndelivered) {
		t.Fatalf("shutdown: %v", err)
	}
	if got := p.files(one); len(got) != 1 || pipeline.Stats().ReadFailed != 0 {
		t.Errorf("left %q, %+v", got, pipeline.Stats())
	}
	p.finish(p.start(nil, m))
	if len(m.views()) < 5 {
		t.Errorf("the next reader's sink got %q", m.views())
	}
}

// The last words of a process wait for its last snapshot, also when the reader is about to end.
func TestAProcessIsMournedAfterItsLastSnapshot(t *testing.T) {
	p := newPlace(t)
	p.folder(4194301, 1, "000001.interval.heap", "a=1", "000002.oom.cuda.pickle", outOfMemory(t))
	m, logs := &memory{name: "m"}, &mourners{name: "logs"}
	var looks atomic.Int64
	pipeline := p.pipeline(countingLooks(&looks, listening(logs)), m)
	for range cap(pipeline.slots) {
		pipeline.slots <- struct{}{}
	}
	// Nobody looks but this test: the last look begins while the snapshot waits for its turn.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pipeline.look(context.Background(), true)
	}()
	p.until("the last look has begun", func() bool { return looks.Load() > 0 })
	for range cap(pipeline.slots) {
		<-pipeline.slots
	}
	<-ended
	pipeline.mu.Lock()
	for _, proc := range pipeline.processes {
		if !proc.mourned {
			t.Error("the last look has not waited for the snapshot")
		}
	}
	pipeline.mu.Unlock()
	pipeline.Start()
	p.finish(pipeline)
	kinds := map[bool]int{}
	for _, ev := range logs.got() {
		if ev.Window == nil {
			kinds[ev.OOM != nil]++
		}
	}
	if kinds[true] != 1 || kinds[false] != 1 {
		t.Errorf("%d errors and %d ends are told, want one of each", kinds[true], kinds[false])
	}
}

// countingLooks counts how often a pipeline asks for the time: at every look, and when it converts a snapshot.
func countingLooks(looks *atomic.Int64, more func(*Config)) func(*Config) {
	return func(c *Config) {
		c.now = func() time.Time { looks.Add(1); return time.Now() }
		more(c)
	}
}

func TestReadingEndsWithThePipeline(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	r := &diskReader{r: strings.NewReader("abc"), stop: ctx}
	b := make([]byte, 1)
	if n, err := r.Read(b); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	cancel()
	if n, err := r.Read(b); n != 0 || !errors.Is(err, context.Canceled) || r.failed == nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// folderOf is a folder of snapshots beside the spool.
func (p *place) folderOf(files ...string) string {
	p.t.Helper()
	dir := p.t.TempDir()
	for i := 0; i+1 < len(files); i += 2 {
		path := filepath.Join(dir, files[i])
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(files[i+1]), 0o644)
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
	return dir
}

func (p *place) watching(dir string, more func(*Config)) func(*Config) {
	return func(c *Config) {
		f, err := spool.OpenFolder(dir, spool.FolderOptions{ServiceName: "trainer"})
		if err != nil {
			p.t.Fatal(err)
		}
		c.Folders = []*spool.Folder{f}
		if more != nil {
			more(c)
		}
	}
}

func tree(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	files := map[string]int64{}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() && e.Name() != spool.FolderJournal {
			info, _ := e.Info()
			rel, _ := filepath.Rel(dir, path)
			files[rel] = info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

const (
	verlStep  = "step4/torch_memory_rank2_pid77.pickle"
	verlSteps = "steps5-6/torch_memory_rank2_pid77.pickle"
	verlOOM   = "oom_20260908-101112-123456/torch_memory_oom_rank2_pid77.pickle"
	npuOOM    = "oom_snapshot_78_20260908101112.pickle"
)

func TestFoldersOfOthersAreDeliveredAndLeftAsTheyAre(t *testing.T) {
	p := newPlace(t)
	oom, plain := outOfMemory(t), pickled(t, snapgen.Options{Whole: true})
	dir := p.folderOf(verlStep, plain, verlSteps, plain, verlOOM, oom, npuOOM, pickled(t, snapgen.Options{Form: snapgen.FormNPU, OOM: true, Capacity: 8 << 30}),
		"odd name #1@2 %.pickle", plain, "weights.pkl", "\x80\x04N.", "cut.pickle", oom[:len(oom)/2], "README.md", "no snapshot", "deep/er/and/deeper/still/x.pickle", plain)
	if err := os.Symlink(filepath.Join(dir, verlStep), filepath.Join(dir, "link.pickle")); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	m, logs := &memory{name: "m"}, &mourners{name: "logs"}
	// The limits of the spool are not those of the folder.
	pipeline := p.start(p.watching(dir, func(c *Config) {
		listening(logs)(c)
		c.Limits = spool.Limits{Files: 1, Age: time.Nanosecond}
	}), m)
	p.finish(pipeline)
	if after := tree(t, dir); !maps.Equal(before, after) {
		t.Errorf("the folder was changed: %v, then %v", before, after)
	}
	got := map[string]string{}
	for _, it := range m.items {
		if it.View == "live" {
			got[it.Base] = fmt.Sprintf("%s rank %q pid %d step %d %s %s %s", it.Process, it.Identity.Rank, it.Identity.PID, it.Figures["step"], it.Device, it.Reason, it.Identity.ServiceName)
		}
	}
	want := map[string]string{
		"step4.torch_memory_rank2_pid77":                          `rank2-pid77 rank "2" pid 77 step 4 cuda:0 window trainer`,
		"steps5-6.torch_memory_rank2_pid77":                       `rank2-pid77 rank "2" pid 77 step 6 cuda:0 window trainer`,
		"oom_20260908-101112-123456.torch_memory_oom_rank2_pid77": `rank2-pid77 rank "2" pid 77 step 0 cuda:0 oom trainer`,
		"oom_snapshot_78_20260908101112":                          `pid78 rank "" pid 78 step 0 npu:7 oom trainer`,
		"odd_name__1_2__":                                         `snapshots rank "" pid 0 step 0 cuda:0 file trainer`,
	}
	for base, w := range want {
		if g, ok := got[base]; g != w && !(ok && strings.HasPrefix(base, "oom_snapshot_78")) {
			t.Errorf("%s: got %q, want %q", base, g, w)
		}
	}
	var ooms []string
	for _, ev := range logs.got() {
		if ev.OOM != nil {
			ooms = append(ooms, fmt.Sprint(ev.Identity.PID, " ", ev.OOM.Kind))
		}
	}
	slices.Sort(ooms)
	if !slices.Equal(ooms, []string{"77 cuda", "78 npu"}) {
		t.Errorf("errors %q", ooms)
	}
	for _, say := range []string{"cut.pickle: left alone: it ends before its end", "weights.pkl: not a memory snapshot"} {
		if !strings.Contains(p.logs.String(), say) {
			t.Errorf("nothing about %q:\n%s", say, p.logs.String())
		}
	}
	if s := pipeline.Stats(); s.Pending != 0 || s.Converted != 5 || s.ConvertFailed != 1 {
		t.Errorf("%+v", s)
	}

	// By the next reader nothing again, but what has changed.
	if err := os.WriteFile(filepath.Join(dir, verlStep), []byte(oom), 0o644); err != nil {
		t.Fatal(err)
	}
	again := &memory{name: "m"}
	p.finish(p.start(p.watching(dir, nil), again))
	bases := map[string]bool{}
	for _, it := range again.items {
		bases[it.Base] = true
	}
	if len(bases) != 1 || !bases["step4.torch_memory_rank2_pid77"] {
		t.Errorf("the next reader delivered %v", bases)
	}
}

// While somebody writes, under the final name as all of them do, nothing is taken.
func TestAFileThatIsStillWrittenIsLeftUntilItIsWhole(t *testing.T) {
	p := newPlace(t)
	whole := outOfMemory(t)
	dir := p.folderOf(verlStep, whole[:len(whole)/2])
	path := filepath.Join(dir, verlStep)
	m := &memory{name: "m"}
	var looks atomic.Int64
	pipeline := p.start(p.watching(dir, countingLooks(&looks, func(*Config) {})), m)
	// put replaces the file at once: every state of it that the reader may see is one that the test means.
	put := func(text string, modified time.Time) {
		t.Helper()
		making := filepath.Join(dir, "making")
		if err := errors.Join(os.WriteFile(making, []byte(text), 0o644), os.Chtimes(making, modified, modified), os.Rename(making, path)); err != nil {
			t.Fatal(err)
		}
	}
	// A piece that happens to end like a pickle, long ago: it is tried, and waited for.
	long := time.Now().Add(-time.Hour)
	put(whole[:len(whole)/2]+".", long)
	p.until("it was tried", func() bool { return pipeline.Stats().ReadFailed >= 1 })
	before := looks.Load()
	p.until("it was looked at some times more", func() bool { return looks.Load() >= before+3 })
	put(whole, long.Add(time.Second))
	p.until("it is delivered", func() bool { return pipeline.sinkStats("m").Accepted == 1 })
	p.finish(pipeline)
	if s := pipeline.Stats(); s.ReadFailed != 1 || s.ConvertFailed != 0 || len(m.views()) < 5 {
		t.Errorf("%+v, %q", s, m.views())
	}
}

// Two jobs of one folder: one of them delivers.
func TestAFolderHasOneReader(t *testing.T) {
	p, other := newPlace(t), newPlace(t)
	dir := p.folderOf(verlStep, outOfMemory(t))
	a, b := &memory{name: "m"}, &memory{name: "m"}
	first := p.start(p.watching(dir, nil), a)
	p.until("it is delivered", func() bool { return first.sinkStats("m").Accepted == 1 })
	second := other.start(other.watching(dir, nil), b)
	other.until("the other has looked", func() bool { return strings.Contains(other.logs.String(), "left to another reader") })
	p.finish(first)
	other.finish(second)
	if len(b.items) != 0 {
		t.Errorf("the other delivered %q too", b.views())
	}
}

// What is known of a process in the spool holds for the snapshots with its pid.
func TestASnapshotOfAProcessInTheSpoolIsThatProcesss(t *testing.T) {
	p := newPlace(t)
	dir := p.folderOf(strings.ReplaceAll(verlStep, "77", "4194301"), pickled(t, snapgen.Options{Whole: true}))
	p.folder(4194301, 1, "000001.exit.heap", "a=1")
	m := &memory{name: "m"}
	pipeline := p.pipeline(p.watching(dir, func(c *Config) { c.Folders[0] = must(spool.OpenFolder(dir, spool.FolderOptions{ServiceName: "other"})) }), m)
	pipeline.Start()
	p.finish(pipeline)
	for _, it := range m.items {
		if it.Kind != hostKind && (it.Identity.ServiceName != "trainer" || it.Identity.StartTicks != 1 || it.Process != "rank2-pid4194301") {
			t.Fatalf("%+v", it.Identity)
		}
	}
	if len(m.views()) < 5 {
		t.Errorf("%q", m.views())
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Errors of one snapshot have profiles of their own; a snapshot of nothing has one of nothing, for its figures to go with.
func TestPartsOfSnapshots(t *testing.T) {
	parts := func(o snapgen.Options, from SnapshotSource) *Parts {
		t.Helper()
		from.ID = func(kind, view string) [16]byte { return sink.ProfileID("h", 1, 1, 1, kind, view) }
		from.Base = "000001.oom"
		s, err := torchmem.Read(strings.NewReader(pickled(t, o)), torchmem.Options{})
		if err != nil {
			t.Fatal(err)
		}
		p, err := SnapshotParts(s, from)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Names) != len(p.Items)+len(p.Events) || len(ids(p.Items)) != len(p.Items) {
			t.Errorf("%d names, %d profiles with %d ids, %d events", len(p.Names), len(p.Items), len(ids(p.Items)), len(p.Events))
		}
		sorted := slices.Sorted(slices.Values(p.Names))
		if len(slices.Compact(sorted)) != len(p.Names) || strings.ContainsAny(strings.Join(p.Names, ""), " \n") {
			t.Errorf("names %q", p.Names)
		}
		return p
	}
	two := parts(snapgen.Options{OOM: true, Capacity: 8 << 30, Steps: 6}, SnapshotSource{FileName: torchmem.FileName{Rank: -1, PID: -1, Step: -1}})
	for i, ev := range two.Events {
		if ev.OOM != nil && ev.OOM.ProfileID != two.Items[i].ProfileID {
			t.Errorf("event %d names profile %x, want %x", i, ev.OOM.ProfileID, two.Items[i].ProfileID)
		}
	}
	// Converted twice it is the same.
	again := parts(snapgen.Options{OOM: true, Capacity: 8 << 30, Steps: 6}, SnapshotSource{})
	if !slices.Equal(two.Names, again.Names) {
		t.Errorf("%q, then %q", two.Names, again.Names)
	}
}

func TestToldIsBounded(t *testing.T) {
	var memo told
	for i := range 3 * maxTold {
		if !memo.first(fmt.Sprint("key", i), fmt.Sprintf("%06d.oom.cuda.pickle", i), false) {
			t.Fatalf("error %d is told by nobody", i)
		}
	}
	if len(memo) != maxTold || memo[fmt.Sprint("key", 3*maxTold-1)] == "" || memo["key0"] != "" {
		t.Errorf("%d, %v", len(memo), memo)
	}
	last := fmt.Sprintf("%06d.oom.cuda.pickle", 3*maxTold-1)
	key := fmt.Sprint("key", 3*maxTold-1)
	if !memo.first(key, last, false) || memo.first(key, "000999.oom.cuda.pickle", false) || !memo.first(key, "000999.oom.cuda.pickle", true) {
		t.Error("who tells changes, or does not when the snapshot is the error's own")
	}
}
