// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/heapwire/heapwire/convert"
	"github.com/heapwire/heapwire/convert/jemalloc/dumpgen"
	otlpconvert "github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/exporter/otlp"
	"github.com/heapwire/heapwire/exporter/otlp/otlptest"
	"github.com/heapwire/heapwire/exporter/sink"
	"github.com/heapwire/heapwire/exporter/spool"
)

// BenchmarkArrival puts ten dumps a second into a spool, of 5000 stacks each, and measures from the rename until the
// Collector's receiver has accepted the profile:
//
//	go test ./exporter -run '^$' -bench Arrival -benchtime 200x
func BenchmarkArrival(b *testing.B) {
	d := dumpgen.Dump{SampleBytes: 512 << 10, Threads: []string{""}}
	for i := range uint32(5000) {
		d.Functions = append(d.Functions, dumpgen.Function{ID: i + 1, Name: fmt.Sprintf("module.function%d", i), File: "/srv/app.py", Line: 1})
		frames := []uint64{dumpgen.Token(i+1, 2)}
		for depth := range uint32(20) {
			frames = append(frames, dumpgen.Token((i*7+depth)%5000+1, 3))
		}
		d.Stacks = append(d.Stacks, dumpgen.Stack{Frames: frames, Objects: 3, Bytes: 3 << 20})
	}
	var text bytes.Buffer
	if err := d.Write(&text); err != nil {
		b.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		b.Fatal(err)
	}
	start, err := spool.StartTicks(os.Getpid())
	if err != nil {
		b.Fatal(err)
	}

	var mu sync.Mutex
	accepted := map[pprofile.ProfileID]time.Time{}
	arrived := make(chan struct{}, 1)
	r, err := otlptest.Start(b.Context(), otlptest.Options{Consume: func(_ context.Context, pd pprofile.Profiles) error {
		mu.Lock()
		defer mu.Unlock()
		accepted[pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0).ProfileID()] = time.Now()
		select {
		case arrived <- struct{}{}:
		default:
		}
		return nil
	}})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Shutdown(context.Background())
	s, err := otlp.New(otlp.Config{Endpoint: r.HTTP + "/" + otlpconvert.HTTPPath, Compression: "gzip"})
	if err != nil {
		b.Fatal(err)
	}
	path := b.TempDir()
	place, err := spool.Open(path, spool.Options{})
	if err != nil {
		b.Fatal(err)
	}
	pipeline, err := New(Config{
		Spool: place, Sinks: []sink.Sink{s}, NoSummary: true,
		Convert: func(r io.Reader, name string) (*convert.Heap, error) {
			return convert.HeapDump(r, convert.Options{Name: name})
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	pipeline.Start()
	folder := filepath.Join(path, fmt.Sprintf("%s-%d-%d", folderHost(host), os.Getpid(), start))
	if err := os.Mkdir(folder, 0o700); err != nil {
		b.Fatal(err)
	}
	renamed := map[pprofile.ProfileID]time.Time{}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	b.ResetTimer()
	for seq := 1; seq <= b.N; seq++ {
		making, name := filepath.Join(folder, fmt.Sprintf(".%06d.tmp", seq)), filepath.Join(folder, fmt.Sprintf("%06d.interval.heap", seq))
		if err := os.WriteFile(making, text.Bytes(), 0o600); err != nil {
			b.Fatal(err)
		}
		id := sink.ProfileID(folderHost(host), os.Getpid(), start, uint64(seq), hostKind, liveView)
		renamed[id] = time.Now()
		if err := os.Rename(making, name); err != nil {
			b.Fatal(err)
		}
		<-tick.C
	}
	have := func() int { mu.Lock(); defer mu.Unlock(); return len(accepted) }
	for deadline := time.After(time.Minute); have() < b.N; {
		select {
		case <-arrived:
		case <-deadline:
			b.Fatalf("%d of %d arrived", have(), b.N)
		}
	}
	b.StopTimer()
	if err := pipeline.Shutdown(context.Background()); err != nil {
		b.Fatal(err)
	}
	var took []float64
	for id, from := range renamed {
		to, ok := accepted[id]
		if !ok {
			b.Fatalf("%x is not among those that arrived", id)
		}
		took = append(took, float64(to.Sub(from).Microseconds())/1000)
	}
	slices.Sort(took)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(took[len(took)/2], "p50-ms")
	b.ReportMetric(took[min(len(took)*99/100, len(took)-1)], "p99-ms")
	b.ReportMetric(took[len(took)-1], "max-ms")
	b.ReportMetric(float64(text.Len())/1e6, "MB/dump")
}

// folderHost renders a host name as the shim does for a folder's name.
func folderHost(host string) string {
	b := []byte(host[:min(len(host), 64)])
	for i, c := range b {
		if c != '.' && c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			b[i] = '_'
		}
	}
	return string(b)
}
