// SPDX-License-Identifier: Apache-2.0

package sink_test

import (
	"sync"
	"testing"
	"time"

	"github.com/heapwire/heapwire/convert/otlp/profiletest"
	"github.com/heapwire/heapwire/exporter/file"
	"github.com/heapwire/heapwire/exporter/otlp"
	"github.com/heapwire/heapwire/exporter/otlp/otlptest"
	"github.com/heapwire/heapwire/exporter/pyroscope"
	"github.com/heapwire/heapwire/exporter/pyroscope/pyroscopetest"
	"github.com/heapwire/heapwire/exporter/sink"
)

// The pipeline hands one item to all sinks at once: they must not write to it. The race detector sees it if they do.
func TestSinksShareAnItem(t *testing.T) {
	receiver, err := otlptest.Start(t.Context(), otlptest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer receiver.Shutdown(t.Context())
	server := pyroscopetest.Start()
	defer server.Close()

	overHTTP, err := otlp.New(otlp.Config{Endpoint: receiver.HTTP + "/v1development/profiles"})
	if err != nil {
		t.Fatal(err)
	}
	overGRPC, err := otlp.New(otlp.Config{Endpoint: receiver.GRPC, Protocol: otlp.GRPC})
	if err != nil {
		t.Fatal(err)
	}
	push, err := pyroscope.New(pyroscope.Config{Address: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	files, err := file.New(file.Config{Dir: t.TempDir(), JSON: true})
	if err != nil {
		t.Fatal(err)
	}
	it := &sink.Item{
		Identity: parse(t, process), Process: "node7-4242-8123456", Base: "000001.interval", Seq: 1, Reason: "interval", Time: time.Now(),
		Kind: "host", View: "live", Profile: profiletest.Generate(profiletest.Shape{Stacks: 50, Depth: 10, Functions: 50, Types: 4, Seed: 2}),
	}
	before := it.Profile.String()
	var wg sync.WaitGroup
	for _, s := range []sink.Sink{overHTTP, overGRPC, push, files} {
		for range 3 {
			wg.Go(func() {
				if err := s.Export(t.Context(), it); err != nil {
					t.Errorf("%s: %v", s.Name(), err)
				}
			})
		}
	}
	wg.Wait()
	if it.Profile.String() != before {
		t.Error("a sink changed the profile")
	}
	for _, s := range []sink.Sink{overHTTP, overGRPC, push, files} {
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("%s: %v", s.Name(), err)
		}
	}
}
