// SPDX-License-Identifier: Apache-2.0

package otlp_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/heapwire/heapwire/convert/otlp/profiletest"
	"github.com/heapwire/heapwire/exporter/otlp"
	"github.com/heapwire/heapwire/exporter/otlp/otlptest"
	"github.com/heapwire/heapwire/exporter/sink"
)

func event() *sink.Event {
	it := item(nil)
	return &sink.Event{
		Identity: it.Identity, Process: it.Process, Observed: profiletest.When.Add(time.Minute), Ended: profiletest.When.Add(30 * time.Second),
		Signal: 9, OOMKills: 1, Last: &sink.LastDump{
			Seq: 3, Reason: "interval", Time: profiletest.When, ProfileID: it.ProfileID, Live: 700, Figures: map[string]int64{"rss": 900, "allocated": 800},
			Top: []sink.Held{{Bytes: 600, Frames: []string{"forward /app/mlp.py:12", "main /app/train.py:3"}}, {Bytes: 100, Frames: []string{"load"}}},
		},
	}
}

// signalWays are the forms of a request for another signal.
func signalWays(r *otlptest.Receiver, path string) map[string]otlp.Config {
	return map[string]otlp.Config{
		"http/protobuf gzip": {Endpoint: r.HTTP + path, Compression: "gzip", Version: "0.1.0"},
		"http/json":          {Endpoint: r.HTTP + path, Protocol: otlp.HTTPJSON, Version: "0.1.0"},
		"grpc":               {Endpoint: r.GRPC, Protocol: otlp.GRPC, Version: "0.1.0"},
	}
}

func TestAKilledProcessArrivesAsALogRecord(t *testing.T) {
	for name := range signalWays(&otlptest.Receiver{}, "") {
		t.Run(name, func(t *testing.T) {
			r := start(t, otlptest.Options{})
			s, err := otlp.NewLogs(signalWays(r, "/v1/logs")[name])
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close(context.Background())
			if err := s.ExportEvent(t.Context(), event()); err != nil {
				t.Fatal(err)
			}
			if len(r.Logs()) != 1 {
				t.Fatalf("%d requests", len(r.Logs()))
			}
			rl := r.Logs()[0].ResourceLogs().At(0)
			if got, _ := rl.Resource().Attributes().Get("service.name"); got.Str() != "trainer" {
				t.Errorf("resource %v", rl.Resource().Attributes().AsRaw())
			}
			record := rl.ScopeLogs().At(0).LogRecords().At(0)
			id := item(nil).ProfileID
			want := map[string]any{
				"heapwire.exit.signal.number": int64(9), "heapwire.exit.signal.name": "SIGKILL", "heapwire.cgroup.oom_kills": int64(1),
				"profile_id": hex.EncodeToString(id[:]), "heapwire.last.seq": int64(3), "heapwire.last.reason": "interval",
				"heapwire.last.time": "2026-11-29T12:00:00Z", "heapwire.heap.live": int64(700), "process.memory.usage": int64(900), "jemalloc.allocated": int64(800),
			}
			got := record.Attributes().AsRaw()
			top := fmt.Sprint(got["heapwire.top"])
			delete(got, "heapwire.top")
			if !maps.Equal(got, want) {
				t.Errorf("attributes\n%v\nwant\n%v", got, want)
			}
			if want := "[map[bytes:600 stack:forward /app/mlp.py:12\nmain /app/train.py:3] map[bytes:100 stack:load]]"; top != want {
				t.Errorf("top %s, want %s", top, want)
			}
			if record.EventName() != "heapwire.process.killed" || record.SeverityText() != "FATAL" ||
				!record.Timestamp().AsTime().Equal(event().Ended) || !record.ObservedTimestamp().AsTime().Equal(event().Observed) {
				t.Errorf("record %q %q %v %v", record.EventName(), record.SeverityText(), record.Timestamp(), record.ObservedTimestamp())
			}
			const body = "process 4242 of trainer was killed by SIGKILL; the kernel killed 1 of its cgroup for want of memory; " +
				"its last dump, at 2026-11-29T12:00:00Z, held 700 bytes, 600 of them from forward (mlp.py:12)"
			if record.Body().Str() != body {
				t.Errorf("body %q", record.Body().Str())
			}
		})
	}
}

func TestWhatIsNotKnownOfAnEndIsLeftOut(t *testing.T) {
	ev := event()
	ev.Ended, ev.Signal, ev.OOMKills, ev.Last = time.Time{}, 0, -1, nil
	record := otlp.LogsOf(ev, "").ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0)
	if record.Attributes().Len() != 0 || record.Timestamp() != 0 || record.Body().Str() != "process 4242 of trainer ended without its last dump" {
		t.Errorf("%v %v %q", record.Attributes().AsRaw(), record.Timestamp(), record.Body().Str())
	}
}

func TestFiguresArriveAsMetrics(t *testing.T) {
	for name := range signalWays(&otlptest.Receiver{}, "") {
		t.Run(name, func(t *testing.T) {
			r := start(t, otlptest.Options{})
			s, err := otlp.NewMetrics(signalWays(r, "/v1/metrics")[name])
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close(context.Background())
			it := item(profiletest.Heap())
			it.Figures = map[string]int64{"rss": 900, "retained": 5, "samples": 70, "step": 12, "seq": 3, "sample_bytes": 1}
			if err := s.Export(t.Context(), it); err != nil {
				t.Fatal(err)
			}
			if len(r.Metrics()) != 1 {
				t.Fatalf("%d requests", len(r.Metrics()))
			}
			var live int64
			for _, values := range otlptest.PprofStacks(it.Profile) {
				live += values["inuse_space/bytes"]
			}
			got := map[string]string{}
			sm := r.Metrics()[0].ResourceMetrics().At(0).ScopeMetrics().At(0)
			for _, m := range sm.Metrics().All() {
				var points pmetric.NumberDataPointSlice
				kind := "gauge"
				if m.Type() == pmetric.MetricTypeSum {
					points = m.Sum().DataPoints()
					kind = fmt.Sprintf("sum monotonic %v", m.Sum().IsMonotonic())
					if start := points.At(0).StartTimestamp().AsTime(); !start.Equal(it.Identity.StartTime) {
						t.Errorf("%s starts at %v", m.Name(), start)
					}
				} else {
					points = m.Gauge().DataPoints()
				}
				if !points.At(0).Timestamp().AsTime().Equal(it.Time) {
					t.Errorf("%s is of %v", m.Name(), points.At(0).Timestamp())
				}
				got[m.Name()] = fmt.Sprintf("%d %s %s %v", points.At(0).IntValue(), m.Unit(), kind, points.At(0).Attributes().AsRaw())
			}
			want := map[string]string{
				"process.memory.usage": "900 By sum monotonic false map[]",
				"jemalloc.retained":    "5 By sum monotonic false map[]",
				"heapwire.samples":     "70 {sample} sum monotonic true map[]",
				"heapwire.step":        "12 {step} gauge map[]",
				"heapwire.heap.live":   fmt.Sprintf("%d By sum monotonic false map[memory_kind:host]", live),
			}
			if !maps.Equal(got, want) {
				t.Errorf("metrics\n%v\nwant\n%v", got, want)
			}
		})
	}
}

func TestARejectedRecordIsNotSentAgain(t *testing.T) {
	url, _, _ := fake(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"partialSuccess":{"rejectedLogRecords":"1","rejectedDataPoints":"1","errorMessage":"no"}}`))
	})
	logs, err := otlp.NewLogs(otlp.Config{Endpoint: url})
	if err != nil {
		t.Fatal(err)
	}
	if err := logs.ExportEvent(t.Context(), event()); !sink.IsPermanent(err) || !strings.Contains(err.Error(), "rejected 1 log records of it: no") {
		t.Errorf("logs: %v", err)
	}
	metrics, err := otlp.NewMetrics(otlp.Config{Endpoint: url})
	if err != nil {
		t.Fatal(err)
	}
	if err := metrics.Export(t.Context(), item(profiletest.Heap())); !sink.IsPermanent(err) || !strings.Contains(err.Error(), "rejected 1 data points of it: no") {
		t.Errorf("metrics: %v", err)
	}
}

func TestEachSignalHasItsVariables(t *testing.T) {
	f := func(signal otlp.Signal, want string, pairs ...string) {
		t.Helper()
		cfg, enabled, err := otlp.ConfigFor(signal, env(pairs...))
		if err != nil || enabled != (want != "") || cfg.Endpoint != want {
			t.Errorf("%s %q: endpoint %q (enabled %v, error %v), want %q", signal, pairs, cfg.Endpoint, enabled, err, want)
		}
	}
	const general = "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318"
	f(otlp.Logs, "http://c:4318/v1/logs", general)
	f(otlp.Metrics, "http://c:4318/v1/metrics", general)
	f(otlp.Logs, "http://l/x", general, "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT=http://l/x", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://m/x")
	f(otlp.Logs, "", "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT=http://p/x")
	f(otlp.Logs, "", general, "OTEL_LOGS_EXPORTER=none")
	f(otlp.Metrics, "", general, "OTEL_METRICS_EXPORTER=prometheus,console")
	f(otlp.Metrics, "http://c:4318/v1/metrics", general, "OTEL_METRICS_EXPORTER=console, otlp")
	f(otlp.Metrics, "", general, "OTEL_SDK_DISABLED=true")
}
