// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/heapwire/heapwire/convert/torchmem/snapgen"
	"github.com/heapwire/heapwire/exporter/sink"
	"github.com/heapwire/heapwire/exporter/spool"
)

func TestWhatIsRefusedForGoodIsQuarantined(t *testing.T) {
	p := newPlace(t)
	folder := p.living()
	p.dump(folder, 1, "interval", "a=1")
	p.dump(folder, 2, "interval", "a=2")
	refusing := &memory{name: "refusing", export: func(_ context.Context, _ int, it *sink.Item) error {
		if it.Seq == 2 {
			return sink.Permanent(errors.New("400 bad request"))
		}
		return nil
	}}
	other := &memory{name: "other"}
	pipeline := p.start(func(c *Config) { c.Quarantine = true }, refusing, other)
	want := []string{"000002.interval.heap.rejected", "000002.interval.heap.rejected.txt"}
	p.until("the refused dump is aside", func() bool { return slices.Equal(p.files(folder), want) })
	p.finish(pipeline)
	if got := p.files(folder); !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	text, err := os.ReadFile(filepath.Join(p.path, folder, want[1]))
	if err != nil || !strings.Contains(string(text), "sink refusing refused it: 400 bad request") {
		t.Errorf("reason %q, %v", text, err)
	}
	if s := pipeline.sinkStats("other"); s.Accepted != 2 {
		t.Errorf("the other sink: %+v", s)
	}
}

func TestFoldersNeedNoSpool(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "later")
	f, err := spool.OpenFolder(path, spool.FolderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{name: "m"}
	pipeline, err := New(Config{Folders: []*spool.Folder{f}, Poll: 1, Sinks: []sink.Sink{m}, Convert: convertText})
	if err != nil {
		t.Fatal(err)
	}
	pipeline.Start()
	making := filepath.Join(dir, "making")
	if err := os.Mkdir(making, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(making, "s.pickle"), []byte(pickled(t, snapgen.Options{Whole: true})), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(making, path); err != nil {
		t.Fatal(err)
	}
	p := newPlace(t)
	p.until("the snapshot is delivered", func() bool { return pipeline.Stats().Converted == 1 && pipeline.Stats().Pending == 0 })
	if err := pipeline.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStatsOfSeveralPipelinesAddUp(t *testing.T) {
	a := Stats{Dumps: 1, Pending: 2, Oldest: 3, Dropped: map[string]int{"age": 1}, Sinks: []SinkStats{{Name: "x", Accepted: 1}}}
	a.Add(Stats{Dumps: 10, Pending: 20, Oldest: 1, Dropped: map[string]int{"age": 2, "bytes": 3}, Sinks: []SinkStats{{Name: "y", Bytes: 7}, {Name: "x", Accepted: 2, Down: true}}})
	if a.Dumps != 11 || a.Pending != 22 || a.Oldest != 3 || a.Dropped["age"] != 3 || a.Dropped["bytes"] != 3 ||
		len(a.Sinks) != 2 || a.Sinks[0].Accepted != 3 || !a.Sinks[0].Down || a.Sinks[1].Bytes != 7 {
		t.Errorf("%+v", a)
	}
}
