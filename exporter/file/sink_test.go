// SPDX-License-Identifier: Apache-2.0

package file_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/heapwire/heapwire/convert/otlp/profiletest"
	"github.com/heapwire/heapwire/exporter/file"
	"github.com/heapwire/heapwire/exporter/sink"
)

var update = flag.Bool("update", false, "Update the golden files")

func item(p *profile.Profile) *sink.Item {
	return &sink.Item{
		Identity: sink.Identity{Host: "node7", PID: 4242, ServiceName: "trainer"},
		Process:  "node7-4242-8123456", Base: "000003.interval", Seq: 3, Reason: "interval",
		Time: profiletest.When, Duration: time.Minute, Kind: "host", View: "live", Profile: p,
	}
}

func open(t *testing.T, cfg file.Config) *file.Sink {
	t.Helper()
	s, err := file.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// tree lists the files below dir.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

func TestFilesOfADump(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	s := open(t, file.Config{Dir: dir, JSON: true, Version: "0.1.0"})
	p := profiletest.Heap()
	before := p.String()
	it := item(p)
	it.Identity.Rank, it.Identity.Forked = "5", true
	it.Figures, it.Giants = map[string]int64{"rss": 1 << 30, "allocated": 1 << 29, "step": 70}, []string{"request of 8.0 GiB by malloc"}
	if err := s.Export(t.Context(), it); err != nil {
		t.Fatal(err)
	}
	const proc = "node7-4242-8123456/"
	want := []string{proc + "000003.interval.html", proc + "000003.interval.otlp.json", proc + "000003.interval.pb.gz", proc + "top.txt"}
	if got := tree(t, dir); !slices.Equal(got, want) {
		t.Fatalf("files %q, want %q", got, want)
	}
	f, err := os.Open(filepath.Join(dir, want[2]))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	back, err := profile.Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	wantNotes := file.Notes{
		Service: "trainer", Rank: "5", Reason: "interval", View: "live", Seq: 3, Forked: true,
		Figures: map[string]int64{"rss": 1 << 30, "allocated": 1 << 29, "step": 70}, Giants: []string{"request of 8.0 GiB by malloc"},
	}
	if notes := file.NotesOf(back); !reflect.DeepEqual(notes, wantNotes) {
		t.Errorf("notes %+v, want %+v", notes, wantNotes)
	}
	if back.Comments = nil; back.String() != before {
		t.Error("the written profile is another one")
	}
	if p.String() != before {
		t.Error("the item's profile changed")
	}
	b, err := os.ReadFile(filepath.Join(dir, want[1]))
	if err != nil {
		t.Fatal(err)
	}
	pd, err := (&pprofile.JSONUnmarshaler{DisallowUnknownFields: true}).UnmarshalProfiles(b)
	if err != nil || pd.SampleCount() == 0 {
		t.Errorf("OTLP/JSON: %d samples, %v", pd.SampleCount(), err)
	}
	for _, name := range append(want, ".", proc) {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode != 0o600 && (mode != 0o700 || !info.IsDir()) {
			t.Errorf("%s has mode %o: a heap profile tells much about a program", name, mode)
		}
	}
}

// The file is what the profile's own Write makes, though that may not be called on a profile that others read.
func TestWrittenProfileIsWhole(t *testing.T) {
	p := profiletest.Heap()
	p.Comments, p.DocURL, p.DropFrames, p.KeepFrames = []string{"a", "b"}, "http://doc", "drop", "keep"
	p.Mapping[0].HasInlineFrames, p.Mapping[0].Offset, p.Location[0].IsFolded = true, 0x1000, true
	p.Location[0].Line[0].Column = 7
	dir := t.TempDir()
	if err := open(t, file.Config{Dir: dir}).Export(t.Context(), item(p)); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(dir, "node7-4242-8123456", "000003.interval.pb.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := profile.Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	got.Comments = slices.DeleteFunc(got.Comments, func(c string) bool { return strings.HasPrefix(c, "heapwire.") })
	var gotBytes, wantBytes bytes.Buffer
	if err := got.WriteUncompressed(&gotBytes); err != nil {
		t.Fatal(err)
	}
	if err := p.WriteUncompressed(&wantBytes); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(gotBytes.Bytes(), wantBytes.Bytes()) {
		t.Errorf("got\n%s\nwant\n%s", got, p)
	}
}

func TestAProfileThatIsNoneIsPermanent(t *testing.T) {
	p := profiletest.Heap()
	p.Sample[0].Location[0] = &profile.Location{ID: 99}
	dir := t.TempDir()
	if err := open(t, file.Config{Dir: dir}).Export(t.Context(), item(p)); !sink.IsPermanent(err) {
		t.Errorf("%v", err)
	}
	if _, err := file.HTML(p, "x"); err == nil {
		t.Error("a flame graph of it")
	}
	if got := tree(t, dir); len(got) != 0 {
		t.Errorf("files %q", got)
	}
}

func TestOnlyTheNewestHasAFlameGraph(t *testing.T) {
	dir := t.TempDir()
	s := open(t, file.Config{Dir: dir})
	export := func(seq uint64, base, view string) {
		t.Helper()
		it := item(profiletest.Heap())
		it.Seq, it.Base, it.View = seq, base, view
		if err := s.Export(t.Context(), it); err != nil {
			t.Fatal(err)
		}
	}
	foreign := filepath.Join(dir, "node7-4242-8123456", "000001.notes.of.mine.html")
	export(1, "000001.start", "live")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	export(3, "000003.interval", "live")
	export(2, "000002.interval", "live") // late
	if top, err := os.ReadFile(filepath.Join(dir, "node7-4242-8123456", "top.txt")); err != nil || !strings.Contains(string(top), "000003.interval") {
		t.Errorf("a late dump took the newest one's place: %.100s", top)
	}
	export(2, "000002.oom", "peak")
	export(4, "000004.exit", "live")
	var got []string
	for _, f := range tree(t, dir) {
		got = append(got, filepath.Base(f))
	}
	want := []string{
		"000001.notes.of.mine.html", "000001.start.pb.gz", "000002.interval.pb.gz", "000002.oom.peak.html", "000002.oom.peak.pb.gz",
		"000003.interval.pb.gz", "000004.exit.html", "000004.exit.pb.gz", "top.peak.txt", "top.txt",
	}
	if !slices.Equal(got, want) {
		t.Errorf("files\n%q, want\n%q", got, want)
	}
	top, err := os.ReadFile(filepath.Join(dir, "node7-4242-8123456", "top.txt"))
	if err != nil || !strings.Contains(string(top), "000004.exit") {
		t.Errorf("top.txt is not the newest's: %.100s", top)
	}
	// A sink of a later run knows nothing of the files that are there.
	s = open(t, file.Config{Dir: dir})
	export(5, "000005.interval", "live")
	if got := tree(t, dir); slices.ContainsFunc(got, func(f string) bool { return strings.HasSuffix(f, "000004.exit.html") }) {
		t.Errorf("an old flame graph is left: %q", got)
	}
}

func TestNamesThatLeaveTheFolderAreRefused(t *testing.T) {
	dir := t.TempDir()
	s := open(t, file.Config{Dir: filepath.Join(dir, "out")})
	for _, name := range []string{"", ".", "..", "../x", "a/b", "/etc", "x\x00"} {
		for _, spoil := range []func(*sink.Item){func(it *sink.Item) { it.Process = name }, func(it *sink.Item) { it.Base = name }} {
			it := item(profiletest.Heap())
			spoil(it)
			if err := s.Export(t.Context(), it); !sink.IsPermanent(err) {
				t.Errorf("%q: %v", name, err)
			}
		}
	}
	if got := tree(t, dir); len(got) != 0 {
		t.Errorf("files %q", got)
	}
	it := item(profiletest.Heap())
	it.Kind, it.Device = "cuda", "../../cuda:0"
	if err := s.Export(t.Context(), it); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, dir); !slices.Contains(got, "out/node7-4242-8123456/000003.interval.cuda.______cuda_0.pb.gz") {
		t.Errorf("files %q", got)
	}
}

func TestAFolderThatCannotBeWrittenMayBeTriedAgain(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "out"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := open(t, file.Config{Dir: filepath.Join(dir, "out")}).Export(t.Context(), item(profiletest.Heap()))
	if err == nil || sink.IsPermanent(err) || !strings.Contains(err.Error(), filepath.Join(dir, "out")) {
		t.Errorf("%v", err)
	}
	// A name that is taken by a folder: the temporary file must not stay.
	if err := os.MkdirAll(filepath.Join(dir, "out2", "node7-4242-8123456", "000003.interval.pb.gz"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := open(t, file.Config{Dir: filepath.Join(dir, "out2")}).Export(t.Context(), item(profiletest.Heap())); err == nil {
		t.Error("no error")
	}
	if got := tree(t, filepath.Join(dir, "out2")); len(got) != 0 {
		t.Errorf("left behind: %q", got)
	}
	if _, err := file.New(file.Config{}); err == nil {
		t.Error("a sink without a folder")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := open(t, file.Config{Dir: t.TempDir()}).Export(ctx, item(profiletest.Heap())); err == nil {
		t.Error("a cancelled export wrote")
	}
}

func TestTop(t *testing.T) {
	got := file.Top(item(profiletest.Heap()), 10)
	name := filepath.Join("testdata", "top.txt")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func page(t *testing.T, p *profile.Profile, title string) string {
	t.Helper()
	b, err := file.HTML(p, title)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestFlameGraphNeedsNothingElse(t *testing.T) {
	html := page(t, profiletest.Heap(), "trainer & <co> $1")
	if len(html) < 10_000 || !strings.HasPrefix(html, "<!DOCTYPE html>") {
		t.Fatalf("no page: %.200s", html)
	}
	for _, ref := range regexp.MustCompile(`(?:src|href)\s*=\s*"([^"]*)"`).FindAllStringSubmatch(html, -1) {
		if ref[1] != "#" {
			t.Errorf("a link to %q", ref[1])
		}
	}
	for _, word := range []string{"<link", "<iframe", "<img", "@import", "fetch(\"http", "./top", "./graph", "./download", "?si="} {
		if strings.Contains(html, word) {
			t.Errorf("%q is in the page", word)
		}
	}
	for _, ref := range regexp.MustCompile(`url\(([^)]{0,20})`).FindAllStringSubmatch(html, -1) {
		if !strings.HasPrefix(strings.Trim(ref[1], `"'`), "data:") {
			t.Errorf("a style refers to %q", ref[1])
		}
	}
	if n := strings.Count(html, "trainer &amp; &lt;co&gt; $1"); n != 2 {
		t.Errorf("the title is there %d times, want in the head and in the details", n)
	}
	for _, frame := range []string{"forward", "attention.py", "c10::alloc_cpu"} {
		if !strings.Contains(html, frame) {
			t.Errorf("no frame %q", frame)
		}
	}
}

// The script looks up its elements by id and stops at the first that is missing.
func TestFlameGraphKeepsWhatItsScriptNeeds(t *testing.T) {
	html := page(t, profiletest.Heap(), "x")
	for _, m := range regexp.MustCompile(`find\('([a-z-]+)'\)`).FindAllStringSubmatch(html, -1) {
		if !strings.Contains(html, `id="`+m[1]+`"`) {
			t.Errorf("the script wants an element %q", m[1])
		}
	}
	if !strings.Contains(html, "stackViewer({") {
		t.Error("no data")
	}
}

func TestFlameGraphShowsLiveBytes(t *testing.T) {
	html := page(t, profiletest.Heap(), "x")
	if !strings.Contains(html, `"Total":537396202`) {
		t.Errorf("the total is not inuse_space's: %s", regexp.MustCompile(`"Total":\d+`).FindString(html))
	}
}

func TestFlameGraphLeavesNoTraceAndAsksNoHome(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("TMPDIR", filepath.Join(home, "tmp"))
	saved := filepath.Join(home, ".config", "pprof", "settings.json")
	if err := os.MkdirAll(filepath.Dir(saved), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(saved, []byte(`{"configs":[{"name":"my secret view","focus":"customer"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if html := page(t, profiletest.Heap(), "x"); strings.Contains(html, "my secret view") || strings.Contains(html, "customer") {
		t.Error("the user's saved views are in the page")
	}
	if got := tree(t, home); !slices.Equal(got, []string{".config/pprof/settings.json"}) {
		t.Errorf("files appeared: %q", got)
	}
	t.Setenv("HOME", "")
	page(t, profiletest.Heap(), "x")
	if got := os.Getenv("XDG_CONFIG_HOME"); got != "" {
		t.Errorf("XDG_CONFIG_HOME is %q afterwards", got)
	}
}

func TestFlameGraphOfManyStacksKeepsTheTotal(t *testing.T) {
	b := profiletest.New(profiletest.Inuse...)
	var total int64
	for i := range 2500 {
		total += int64(i)
		b.Add([]int64{1, int64(i)}, b.Python(b.Func(fmt.Sprintf("f%d", i), "", "f.py", 1), 1))
	}
	before := b.Profile.String()
	html := page(t, b.Profile, "x")
	for _, want := range []string{fmt.Sprintf(`"Total":%d,`, total), "[500 smaller stacks]", "f2499", "f500"} {
		if !strings.Contains(html, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(html, "f499 ") || strings.Contains(html, `"f499"`) {
		t.Error("one of the 500 smallest is there")
	}
	if b.Profile.String() != before {
		t.Error("the profile changed")
	}
}

func TestFlameGraphsAtTheSameTime(t *testing.T) {
	var wg sync.WaitGroup
	p := profiletest.Heap()
	for range 4 {
		wg.Go(func() {
			if _, err := file.HTML(p, "x"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestFlameGraphOfNothing(t *testing.T) {
	p := profiletest.New(profiletest.Inuse...)
	if html := page(t, p.Profile, "empty"); !strings.Contains(html, "<title>empty</title>") {
		t.Errorf("%.300s", html)
	}
	if _, err := file.HTML(&profile.Profile{}, "x"); err == nil {
		t.Error("a flame graph without a sample type")
	}
}

func BenchmarkHTML(b *testing.B) {
	p := profiletest.Generate(profiletest.Shape{Stacks: 10_000, Depth: 60, Functions: 10_000, Types: 2, Seed: 1})
	for b.Loop() {
		html, err := file.HTML(p, "x")
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(len(html)), "page-bytes")
	}
}
