// SPDX-License-Identifier: Apache-2.0

package torchmem_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/pprof/profile"
	"github.com/klauspost/compress/zstd"

	"github.com/heapwire/heapwire/convert/pickle"
	"github.com/heapwire/heapwire/convert/stack"
	"github.com/heapwire/heapwire/convert/torchmem"
	"github.com/heapwire/heapwire/convert/torchmem/snapgen"
)

// An error handled in Python frees what was live: a dump taken then shows nothing of it.
func TestDumpAfterUnwindingShowsTheStateAtTheError(t *testing.T) {
	g, data := generate(t, snapgen.Options{OOM: true, Unwind: true, Capacity: 8 << 30, Form: snapgen.Form26})
	s := read(t, data, torchmem.Options{})
	d := s.Devices[0]
	if len(d.OOMs) != 1 || d.OOMCount != 1 {
		t.Fatalf("got %d of %d errors, want 1", len(d.OOMs), d.OOMCount)
	}
	o := d.OOMs[0]
	if !o.Unwound || o.Live < 10*d.Requested || o.LiveAtDump != d.Requested {
		t.Errorf("live %d at the error, %d at the dump, unwound %v", o.Live, d.Requested, o.Unwound)
	}
	if s.DefaultView("") != "oom" {
		t.Errorf("default view %s", s.DefaultView(""))
	}
	if len(o.Top) != 3 || o.Top[0].Stack[0].String() != "forward head.py:20" || o.Stack[0].String() != "forward head.py:20" {
		t.Errorf("top %v, failing stack %v", o.Top, o.Stack)
	}
	if o.Time.IsZero() || o.Inactive <= 0 || o.Reserved != g.Truth().OOMs[0].Reserved {
		t.Errorf("got %+v", o)
	}
	p := view(t, s, "oom", d.Name)
	_, total := sum(p)
	if total != o.Live+o.Requested {
		t.Errorf("the view has %d bytes, want %d live and %d requested", total, o.Live, o.Requested)
	}
	var page bytes.Buffer
	if err := s.WriteText(&page, "", 5); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"out of memory", "forward head.py:20", "after unwinding", "at the last out-of-memory error"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, &page)
		}
	}
	// A dump from an observer, before anything is unwound, is not called so.
	_, data = generate(t, snapgen.Options{OOM: true, Capacity: 8 << 30})
	if o := read(t, data, torchmem.Options{}).Devices[0].OOMs[0]; o.Unwound {
		t.Errorf("unwound: live %d at the error, %d at the dump", o.Live, o.LiveAtDump)
	}
}

// The holes are those between the blocks that were live then, in the segments that were there then.
func TestLargestHoleAtTheErrorIsThatOfTheDumpBeforeUnwinding(t *testing.T) {
	for _, expandable := range []bool{false, true} {
		o := snapgen.Options{OOM: true, Capacity: 1 << 30, Whole: true, Expandable: expandable, Seed: 4}
		_, data := generate(t, o)
		d := read(t, data, torchmem.Options{}).Devices[0]
		got := d.OOMs[0]
		o.Unwind, o.GiveBack = true, true
		_, data = generate(t, o)
		unwound := read(t, data, torchmem.Options{}).Devices[0].OOMs[0]
		if got.LargestHole != unwound.LargestHole || got.Inactive != unwound.Inactive || got.LargestHole == 0 {
			t.Errorf("expandable %v: hole %d and inactive %d before unwinding, %d and %d after", expandable, got.LargestHole, got.Inactive, unwound.LargestHole, unwound.Inactive)
		}
		// The model may leave up to 1 MiB of a block unused, which the trace does not show.
		if got.LargestHole < d.LargestHole || got.LargestHole > d.LargestHole+2<<20 {
			t.Errorf("expandable %v: hole %d rebuilt, %d in the dump's blocks", expandable, got.LargestHole, d.LargestHole)
		}
	}
}

// A block of before the window that was freed between two errors was in place at the first.
func TestHolesBetweenTwoErrors(t *testing.T) {
	oom := dictOf("action", "oom", "device_free", 0, "size", 9000, "stream", 0, "frames", []any{})
	data := snapshotOf([]any{segmentOf(4096, 4096, blockOf(4096, 512, 500, "active_allocated"), blockOf(4608, 3584, 0, "inactive"))},
		[]any{oom, event("free_completed", 4096+2048, 512), oom})
	d := read(t, data, torchmem.Options{}).Devices[0]
	if len(d.OOMs) != 2 || d.OOMs[0].LargestHole != 1536 || d.OOMs[1].LargestHole != 3584 || d.OOMs[0].Live != 1012 || d.OOMs[1].Live != 500 {
		t.Errorf("got %+v and %+v", d.OOMs[0], d.OOMs[1])
	}
}

func TestManyErrorsKeepTheFirstAndTheLast(t *testing.T) {
	var events []any
	for i := range 20 {
		events = append(events, map[string]any{"action": "oom", "device_free": i, "size": 1000 + i, "stream": 0, "frames": []any{}})
	}
	s := read(t, pickled(dictOf("segments", []any{}, "device_traces", []any{events})), torchmem.Options{OOMs: 4})
	d := s.Devices[0]
	var sizes []int64
	for _, o := range d.OOMs {
		sizes = append(sizes, o.Requested)
	}
	if !slices.Equal(sizes, []int64{1000, 1001, 1018, 1019}) || d.OOMCount != 20 {
		t.Errorf("got %v of %d", sizes, d.OOMCount)
	}
}

func TestSamplesHaveDeviceAndPool(t *testing.T) {
	g, data := generate(t, snapgen.Options{PrivatePools: true, Devices: 3, HostSegments: true})
	s := read(t, data, torchmem.Options{})
	if len(s.Devices) != 2 || s.Devices[0].Name != "cuda:2" || s.Devices[1].Name != "cpu" || s.Devices[1].Kind != "pinned" {
		t.Fatalf("devices %v", s.Devices)
	}
	if d := s.Devices[1]; d.Reserved != snapgen.HostSize || d.Requested != snapgen.HostSize {
		t.Errorf("host: %+v", d)
	}
	p := view(t, s, "live", "")
	var pinned, private int64
	for _, sample := range p.Sample {
		device := sample.Label["device"]
		if len(device) != 1 || device[0] != "cuda:2" && device[0] != "cpu" {
			t.Errorf("label device %v", device)
		}
		if device[0] == "cpu" {
			pinned += sample.Value[1]
		}
		if pool := sample.Label["pool"]; pool != nil {
			private += sample.Value[1]
			if pool[0] != "0,1" {
				t.Errorf("pool %v", pool)
			}
		}
	}
	if pinned != snapgen.HostSize {
		t.Errorf("%d bytes pinned", pinned)
	}
	_, total := sum(p)
	if total != g.Truth().Requested+snapgen.HostSize {
		t.Errorf("all devices have %d bytes", total)
	}
	_, reserved := sum(view(t, s, "reserved", "2"))
	if reserved != g.Truth().Reserved {
		t.Errorf("device 2 has %d reserved", reserved)
	}
	poolBytes := func(name string) (n int64) {
		for _, sample := range view(t, s, name, "cuda:2").Sample {
			if sample.Label["pool"] != nil {
				n += sample.Value[1]
			}
		}
		return n
	}
	if poolBytes("reserved") == 0 {
		t.Error("no reserved bytes in the private pool")
	}
	for _, bad := range []string{"cuda:7", "npu:2", "x"} {
		if _, err := s.View("live", bad); err == nil || !strings.Contains(err.Error(), "cuda:2, cpu") {
			t.Errorf("device %s: %v", bad, err)
		}
	}
	if _, err := s.View("nonsense", ""); err == nil || !strings.Contains(err.Error(), "live, peak") {
		t.Errorf("unknown view: %v", err)
	}
}

func TestWindowThatBeginsLateIsTold(t *testing.T) {
	for window, want := range map[int]bool{0: false, 200: true} {
		_, data := generate(t, snapgen.Options{Window: window, Whole: true})
		if got := read(t, data, torchmem.Options{}).Devices[0].WindowTruncated; got != want {
			t.Errorf("window of %d events: truncated %v", window, got)
		}
	}
	data := pickled(dictOf("segments", []any{}, "device_traces", []any{[]any{event("alloc", 1, 1)}},
		"allocator_settings", dictOf("0", dictOf("trace_alloc_max_entries", 1, "trace_alloc_overflowed", true))))
	if s := read(t, data, torchmem.Options{}); !s.Settings.WindowOverflowed || !s.Devices[0].WindowTruncated {
		t.Errorf("got %+v", s.Settings)
	}
}

// Events did not tell the pool before 2.12: in the views of the window, what was there before has no such label either.
func TestPoolIsTheSegments(t *testing.T) {
	segment := append(segmentOf(4096, 1024, blockOf(4096, 1024, 1000, "active_allocated")), "segment_pool_id", tuple{0, 3})
	s := read(t, snapshotOf([]any{segment}, []any{event("alloc", 9, 9), event("free", 9, 9)}), torchmem.Options{})
	for name, want := range map[string]string{"live": "0,3", "reserved": "0,3", "rounding": "0,3", "peak": ""} {
		for _, sample := range view(t, s, name, "").Sample {
			if got := strings.Join(sample.Label["pool"], " "); got != want {
				t.Errorf("view %s: pool %q, want %q", name, got, want)
			}
		}
	}
}

func TestSampleTypes(t *testing.T) {
	_, data := generate(t, snapgen.Options{})
	s := read(t, data, torchmem.Options{})
	for _, name := range torchmem.Views {
		p := view(t, s, name, "")
		want := "inuse"
		if name == "alloc" {
			want = "alloc"
		}
		if len(p.SampleType) != 2 || p.SampleType[0].Type != want+"_objects" || p.SampleType[0].Unit != "count" ||
			p.SampleType[1].Type != want+"_space" || p.SampleType[1].Unit != "bytes" || p.DefaultSampleType != want+"_space" {
			t.Errorf("view %s: %v", name, p.SampleType)
		}
		var b bytes.Buffer
		if err := p.Write(&b); err != nil {
			t.Errorf("view %s: %v", name, err)
		}
		if _, err := profile.ParseData(b.Bytes()); err != nil {
			t.Errorf("view %s: %v", name, err)
		}
		if p.TimeNanos != s.Time.UnixNano() || p.DurationNanos <= 0 {
			t.Errorf("view %s: time %d, duration %d", name, p.TimeNanos, p.DurationNanos)
		}
	}
}

// torch_npu's traces have no time: it comes from the caller.
func TestTimeOfASnapshotWithoutTimes(t *testing.T) {
	_, data := generate(t, snapgen.Options{Form: snapgen.FormNPU})
	when := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s := read(t, data, torchmem.Options{Time: when})
	if !s.Time.Equal(when) || !s.Start.IsZero() || view(t, s, "live", "").TimeNanos != when.UnixNano() {
		t.Errorf("time %v, start %v", s.Time, s.Start)
	}
}

func TestFramesAreFilteredAndTyped(t *testing.T) {
	_, data := generate(t, snapgen.Options{CPP: true})
	for _, all := range []bool{false, true} {
		s := read(t, data, torchmem.Options{AllFrames: all})
		p := view(t, s, "alloc", "")
		plumbing, native, python := 0, 0, 0
		for _, l := range p.Location {
			f := l.Line[0].Function
			switch {
			case strings.HasPrefix(f.Name, "["):
			case strings.HasSuffix(f.Filename, ".py"):
				python++
				if !stack.IsPython(l) {
					t.Errorf("%s is not typed as Python", f.Name)
				}
			default:
				native++
				if stack.IsPython(l) {
					t.Errorf("%s is typed as Python", f.Name)
				}
				if f.Filename == "??" || f.Filename == ":0" {
					t.Errorf("%s has the file %s", f.Name, f.Filename)
				}
			}
			for _, bad := range []string{"unwind", "gather", "_PyEval", "_start"} {
				if strings.Contains(f.Name, bad) {
					plumbing++
				}
			}
		}
		if python == 0 || native == 0 || all != (plumbing > 0) {
			t.Errorf("all frames %v: %d Python, %d native, %d that the viewer leaves out", all, python, native, plumbing)
		}
		if _, bytes := sum(p); bytes != s.Devices[0].AllocBytes {
			t.Errorf("all frames %v: %d bytes of %d", all, bytes, s.Devices[0].AllocBytes)
		}
	}
}

func TestBackwardAllocationsHaveTheirForwardStack(t *testing.T) {
	_, data := generate(t, snapgen.Options{Forward: true})
	s := read(t, data, torchmem.Options{})
	text := view(t, s, "alloc", "").String()
	if !strings.Contains(text, torchmem.BackwardOf) || strings.Contains(text, torchmem.NoPythonFrames) {
		t.Errorf("got\n%s", text)
	}
	for _, r := range stack.Top(view(t, s, "alloc", ""), "", 0) {
		if r.Function == torchmem.BackwardOf && r.Flat != 0 {
			t.Errorf("charged to %+v", r)
		}
	}
}

func TestUnknownKeysAndActionsAreCounted(t *testing.T) {
	g, data := generate(t, snapgen.Options{Extra: true, Seed: 3})
	s := read(t, data, torchmem.Options{Name: "x.pickle", AllFrames: true})
	d := s.Devices[0]
	if d.Requested != g.Truth().Requested || d.Peak != g.Truth().Peak {
		t.Errorf("requested %d, peak %d", d.Requested, d.Peak)
	}
	w := strings.Join(s.Report.Warnings(), "\n")
	for _, want := range []string{`x.pickle: unknown key of an event "shoe_size"`, `unknown action "teleport" was skipped, 1 times`, `unknown key of a frame "shoe_size"`, `unknown key of a block`} {
		if !strings.Contains(w, want) {
			t.Errorf("warnings lack %q:\n%s", want, w)
		}
	}
}

// rendering is all that a snapshot says, without the input's name.
func rendering(t testing.TB, s *torchmem.Snapshot) string {
	t.Helper()
	var b bytes.Buffer
	s.Report.Name = ""
	if err := s.WriteText(&b, "", 10); err != nil {
		t.Fatal(err)
	}
	for _, name := range torchmem.Views {
		p := view(t, s, name, "")
		if err := stack.Folded(&b, p, ""); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// The same content reads the same, whoever wrote it and however it arrives.
func TestWriterAndOrderDoNotMatter(t *testing.T) {
	base := snapgen.Options{OOM: true, Unwind: true, Capacity: 2 << 30, Leak: 1 << 20, Window: 900, PendingFrees: 2, Seed: 11}
	_, data := generate(t, base)
	want := rendering(t, read(t, data, torchmem.Options{}))
	f := func(name string, change func(*snapgen.Options)) {
		t.Helper()
		o := base
		change(&o)
		_, data := generate(t, o)
		if got := rendering(t, read(t, data, torchmem.Options{})); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
	}
	f("protocol 2", func(o *snapgen.Options) { o.Protocol = 2 })
	f("protocol 3", func(o *snapgen.Options) { o.Protocol = 3 })
	f("protocol 5", func(o *snapgen.Options) { o.Protocol = 5 })
	f("C++ pickler", func(o *snapgen.Options) { o.Form = snapgen.FormCPP })
	f("pool ids", func(o *snapgen.Options) { o.Form = snapgen.Form212 })
	f("2.6", func(o *snapgen.Options) { o.Form = snapgen.Form26 })
	f("traces first", func(o *snapgen.Options) { o.TracesFirst = true })
	f("other keys first", func(o *snapgen.Options) { o.ShuffleKeys = true })
	f("all of it", func(o *snapgen.Options) { o.ShuffleKeys, o.TracesFirst, o.Form = true, true, snapgen.FormCPP })

	same := func(name string, r io.Reader) {
		t.Helper()
		s, err := torchmem.Read(r, torchmem.Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := rendering(t, s); got != want {
			t.Errorf("%s reads differently", name)
		}
	}
	same("byte by byte", iotest.OneByteReader(bytes.NewReader(data)))
	same("halves", iotest.HalfReader(bytes.NewReader(data)))
	same("data with the error", iotest.DataErrReader(bytes.NewReader(data)))
	same("zeros after the end", io.MultiReader(bytes.NewReader(data), bytes.NewReader(make([]byte, 100))))
	var z bytes.Buffer
	gz := gzip.NewWriter(&z)
	gz.Write(data)
	gz.Close()
	r, err := gzip.NewReader(bytes.NewReader(z.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	same("gzip", r)
	enc, _ := zstd.NewWriter(nil)
	dec, err := zstd.NewReader(bytes.NewReader(enc.EncodeAll(data, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer dec.Close()
	same("zstd", dec)
	pr, pw := io.Pipe()
	go func() {
		_, err := pw.Write(data)
		pw.CloseWithError(err)
	}()
	same("pipe", pr)
	// A compressed file that was cut is a snapshot that was cut.
	r, err = gzip.NewReader(bytes.NewReader(z.Bytes()[:z.Len()/2]))
	if err != nil {
		t.Fatal(err)
	}
	s, err := torchmem.Read(r, torchmem.Options{})
	if err != nil || !s.Report.Truncated {
		t.Errorf("half a gzip file: %v", err)
	}
}

// A file may be cut anywhere. What is before the cut is read, nothing is gained, and the cut is told.
func TestCutAnywhere(t *testing.T) {
	for _, o := range []snapgen.Options{
		{Steps: 2, Layers: 1, OOM: true, Capacity: 300 << 20},
		{Steps: 2, Layers: 1, TracesFirst: true, Form: snapgen.Form26},
		{Steps: 2, Layers: 1, Form: snapgen.FormCPP},
		{Steps: 2, Layers: 1, Form: snapgen.Form20},
	} {
		o.Depth = 4
		g, data := generate(t, o)
		truth := g.Truth()
		// Every byte of what begins and ends, and every 23rd of what repeats itself.
		step := 23
		readable := 0
		for cut := 0; cut < len(data); cut++ {
			if cut > 1000 && cut < len(data)-1000 && cut%step != 0 {
				continue
			}
			s, err := torchmem.Read(bytes.NewReader(data[:cut]), torchmem.Options{Name: "cut.pickle"})
			if err != nil {
				if !errors.Is(err, pickle.ErrTruncated) || s != nil {
					t.Fatalf("cut at %d: %v", cut, err)
				}
				if !strings.Contains(err.Error(), "cut.pickle") {
					t.Fatalf("cut at %d: %v does not name the file", cut, err)
				}
				continue
			}
			readable++
			if !s.Report.Truncated || len(s.Report.Warnings()) == 0 {
				t.Fatalf("cut at %d: not told", cut)
			}
			for _, d := range s.Devices {
				if d.Reserved > truth.Reserved || d.Requested > truth.Requested || d.AllocBytes > truth.AllocBytes || d.Events > truth.Events {
					t.Fatalf("cut at %d: gains: %+v", cut, d)
				}
				for _, name := range []string{"live", "reserved", "inactive", "holders", "peak", "alloc"} {
					_, got := sum(view(t, s, name, d.Name))
					want := map[string]int64{"live": d.Requested, "reserved": d.Reserved, "inactive": d.Inactive, "holders": d.Inactive, "peak": d.Peak, "alloc": d.AllocBytes}[name]
					if got != want {
						t.Fatalf("cut at %d: view %s has %d, want %d", cut, name, got, want)
					}
				}
			}
			if cut%50 == 0 {
				if err := s.WriteText(io.Discard, "", 3); err != nil {
					t.Fatal(err)
				}
			}
		}
		if readable < 1000 {
			t.Errorf("only %d cuts are readable", readable)
		}
	}
}

// Bytes changed at random give an error or a profile, never a panic.
func TestDamageAnywhere(t *testing.T) {
	_, data := generate(t, snapgen.Options{Steps: 2, Layers: 2, OOM: true, Capacity: 400 << 20})
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1500 {
		bad := bytes.Clone(data)
		for range 1 + rng.IntN(4) {
			bad[rng.IntN(len(bad))] = byte(rng.Uint32())
		}
		s, err := torchmem.Read(bytes.NewReader(bad), torchmem.Options{})
		if err == nil {
			check(t, s)
		} else if s != nil {
			t.Fatal("a snapshot beside an error")
		}
	}
}

// check walks over all that a snapshot says.
func check(t testing.TB, s *torchmem.Snapshot) {
	t.Helper()
	s.Report.Warnings()
	s.Metrics()
	for _, d := range s.Devices {
		for name, want := range map[string]int64{"live": d.Requested, "reserved": d.Reserved, "inactive": d.Inactive, "holders": d.Inactive, "pending": d.Pending, "alloc": d.AllocBytes, "peak": d.Peak, "survivors": d.SurvivorBytes} {
			objects, got := sum(view(t, s, name, d.Name))
			if got != want {
				t.Fatalf("%s: view %s has %d, want %d", d.Name, name, got, want)
			}
			if objects < 0 || got < 0 {
				t.Fatalf("%s: view %s has %d objects, %d bytes", d.Name, name, objects, got)
			}
		}
		for _, o := range d.OOMs {
			if _, err := s.OOMView(o); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range torchmem.Views {
		view(t, s, name, "")
	}
	if err := s.WriteText(io.Discard, "", 3); err != nil {
		t.Fatal(err)
	}
}

// In a file that was cut, the traces that were read to their end are as good as in a whole one.
func TestTracesBeforeTheCutAreWhole(t *testing.T) {
	traces := []any{[]any{event("alloc", 1, 100), event("free", 1, 100)}, []any{event("alloc", 2, 100), event("free_requested", 2, 100)}, []any{event("snapshot", 0, 0)}}
	data := pickled(dictOf("segments", []any{}, "device_traces", traces, "allocator_settings", dictOf("expandable_segments", true)))
	f := func(before string, want ...bool) {
		t.Helper()
		cut := len(data)
		if before != "" {
			cut = bytes.Index(data, []byte(before))
		}
		s := read(t, data[:cut], torchmem.Options{})
		var got []bool
		for _, d := range s.Devices {
			got = append(got, d.Complete)
		}
		if !slices.Equal(got, want) {
			t.Errorf("cut before %q: complete %v, want %v", before, got, want)
		}
	}
	f("free", false)
	f("free_requested", true, false)
	f("snapshot", true, false) // nothing of the third was seen: the second may go on
	f("allocator_settings", true, true, true)
	f("expandable_segments", true, true, true)
	f("", true, true, true)
}

// Pinned host memory has segments, of device -1, and a trace of its own, in one list or in a list of lists.
func TestHostTraces(t *testing.T) {
	events := []any{event("alloc", 4096, 1000), event("alloc", 8192, 50), event("free", 8192, 50)}
	// As torch/csrc/cuda/Module.cpp writes them (pytorch/pytorch@85be33f).
	hostSegment := func(addr, size, requested, line int, state string) pairs {
		block := dictOf("address", addr, "size", size, "requested_size", requested, "state", state, "frames", []any{dictOf("name", "stage", "filename", "/srv/load.py", "line", line)})
		return dictOf("device", -1, "address", addr, "total_size", size, "requested_size", 0, "stream", 0, "segment_type", "small", "segment_pool_id", tuple{0, 0},
			"is_expandable", false, "frames", []any{}, "blocks", []any{block})
	}
	segments := []any{
		hostSegment(4096, 1024, 1000, 7, "active_allocated"), hostSegment(16384, 4096, 2100, 9, "active_allocated"), hostSegment(8192, 64, 64, 7, "inactive"),
	}
	for _, traces := range [][]any{events, {events}} {
		data := pickled(dictOf("segments", []any{}, "device_traces", []any{[]any{event("alloc", 4096, 7), event("free", 4096, 7)}},
			"host_segments", segments, "host_traces", traces))
		s := read(t, data, torchmem.Options{})
		if len(s.Devices) != 2 || s.Report.BadSegments != 0 {
			t.Fatalf("%d devices, %+v", len(s.Devices), s.Report)
		}
		d := s.Devices[1]
		if d.Name != "cpu" || d.Kind != "pinned" || d.AllocBytes != 1050 || d.SurvivorBytes != 1000 || d.Requested != 3100 || d.Baseline != 2100 || s.Devices[0].AllocBytes != 7 {
			t.Errorf("got %+v and %+v", d, s.Devices[0])
		}
		if d.Active != 5120 || d.Inactive != 64 || d.Rounding != 2020 || len(d.Rounded) != 2 || d.Rounded[0].Bytes != 1996 || d.Rounded[0].Stack[0].String() != "stage load.py:9" {
			t.Errorf("rounded: %+v", d)
		}
		check(t, s)
	}
}
