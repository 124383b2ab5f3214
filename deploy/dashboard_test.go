// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.yaml.in/yaml/v3"

	"github.com/heapwire/heapwire/convert/otlp/profiletest"
	"github.com/heapwire/heapwire/convert/torchmem"
	"github.com/heapwire/heapwire/convert/torchmem/snapgen"
	"github.com/heapwire/heapwire/exporter"
	"github.com/heapwire/heapwire/exporter/otlp"
	"github.com/heapwire/heapwire/exporter/pyroscope"
	"github.com/heapwire/heapwire/exporter/pyroscope/pyroscopetest"
	"github.com/heapwire/heapwire/exporter/sink"
)

// emitted is what the code sends, by the names it has in the back ends.
type emitted struct {
	profileTypes map[string]bool
	labels       map[string]bool            // of Pyroscope's series
	metrics      map[string]map[string]bool // Prometheus's name → labels of its points
	bodies       []string                   // of log records
}

func everything(t *testing.T) emitted {
	t.Helper()
	e := emitted{profileTypes: map[string]bool{}, labels: map[string]bool{}, metrics: map[string]map[string]bool{}}
	id := sink.Identity{Host: "node7", PID: 5, ServiceName: "trainer", Rank: "3", LocalRank: "1", WorldSize: "8"}

	var pickle bytes.Buffer
	if err := snapgen.Generate(snapgen.Options{OOM: true, Capacity: 8 << 30}).Write(&pickle); err != nil {
		t.Fatal(err)
	}
	side, err := torchmem.ParseSidecar([]byte(`{"schema": 1, "reason": "oom", "device_kind": "cuda", "device": "cuda:0", "free_bytes": 1, "total_bytes": 2, "memory_stats": {}}`))
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := torchmem.Read(&pickle, torchmem.Options{Sidecar: side})
	if err != nil {
		t.Fatal(err)
	}
	parts, err := exporter.SnapshotParts(snapshot, exporter.SnapshotSource{
		Item: sink.Item{Identity: id, Time: time.Now()}, Kind: "cuda", Sidecar: side, FileName: torchmem.FileName{Rank: -1, PID: -1, Step: -1},
		ID: func(string, string) [16]byte { return [16]byte{1} },
	})
	if err != nil {
		t.Fatal(err)
	}
	heap := &sink.Item{Identity: id, Time: time.Now(), Kind: "host", View: "live", Profile: profiletest.Heap(), Figures: map[string]int64{}}
	// The figures of a dump are those of the table of HEAPWIRE_META.
	meta := read(t, "..", "docs", "spool.md")
	meta = meta[strings.Index(meta, "### `HEAPWIRE_META"):strings.Index(meta, "### `HEAPWIRE_BUILD_IDS")]
	for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(meta, -1) {
		heap.Figures[m[1]] = 1
	}
	server := pyroscopetest.Start()
	defer server.Close()
	push, err := pyroscope.New(pyroscope.Config{Address: server.URL, Stale: pyroscope.RestampStale})
	if err != nil {
		t.Fatal(err)
	}
	for _, it := range append(parts.Items, heap) {
		if err := push.Export(t.Context(), it); err != nil {
			t.Fatal(err)
		}
		for _, m := range otlp.MetricsOf(it, "").ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
			e.metric(m)
		}
	}
	for _, p := range server.Pushes() {
		for k := range p.Labels {
			e.labels[k] = true
		}
		for _, st := range p.Profile.SampleType {
			pt := p.Profile.PeriodType
			e.profileTypes[fmt.Sprintf("%s:%s:%s:%s:%s", p.Labels["__name__"], st.Type, st.Unit, pt.Type, pt.Unit)] = true
		}
	}
	for _, ev := range append(parts.Events, &sink.Event{Identity: id}, &sink.Event{Identity: id, Signal: 9}) {
		e.bodies = append(e.bodies, otlp.LogsOf(ev, "").ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0).Body().Str())
	}
	return e
}

// metric notes a metric under the name that Prometheus gives it
// (https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/).
func (e emitted) metric(m pmetric.Metric) {
	name := strings.ReplaceAll(m.Name(), ".", "_")
	if m.Unit() == "By" {
		name += "_bytes"
	}
	points := pmetric.NewNumberDataPointSlice()
	switch m.Type() {
	case pmetric.MetricTypeSum:
		points = m.Sum().DataPoints()
		if m.Sum().IsMonotonic() {
			name += "_total"
		}
	case pmetric.MetricTypeGauge:
		points = m.Gauge().DataPoints()
	}
	if e.metrics[name] == nil {
		e.metrics[name] = map[string]bool{}
	}
	for _, p := range points.All() {
		for k := range p.Attributes().All() {
			e.metrics[name][strings.ReplaceAll(k, ".", "_")] = true
		}
	}
}

var (
	promSelector = regexp.MustCompile(`([a-z_:][a-z0-9_:]*)\{([^}]*)\}`)
	promBy       = regexp.MustCompile(`\bby \(([a-z_, ]+)\)`)
	matcher      = regexp.MustCompile(`([a-z_]+)(?:=~|!~|!=|=)"`)
)

func TestEveryQueryOfTheDashboardAsksForWhatTheCodeSends(t *testing.T) {
	e := everything(t)
	var promoted struct {
		OTLP struct {
			Promote []string `yaml:"promote_resource_attributes"`
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "compose", "prometheus.yaml")), &promoted); err != nil {
		t.Fatal(err)
	}
	var resource []string
	for _, a := range promoted.OTLP.Promote {
		resource = append(resource, strings.ReplaceAll(a, ".", "_"))
	}
	type target struct {
		Expr, ProfileTypeID, LabelSelector string
		GroupBy                            []string
		Datasource                         struct{ Type string }
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []target
		}
		Templating struct {
			List []struct {
				Name  string
				Query json.RawMessage
			}
		}
	}
	if err := json.Unmarshal([]byte(read(t, "grafana", "service.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	queries := 0
	profile := func(where, id string, labels ...string) {
		queries++
		if !e.profileTypes[id] {
			t.Errorf("%s: profile type %q is not sent; sent are %v", where, id, e.profileTypes)
		}
		for _, l := range labels {
			if !e.labels[l] {
				t.Errorf("%s: label %s is not sent; sent are %v", where, l, e.labels)
			}
		}
	}
	for _, p := range dashboard.Panels {
		for _, q := range p.Targets {
			switch q.Datasource.Type {
			case "grafana-pyroscope-datasource":
				labels := slices.Clone(q.GroupBy)
				for _, m := range matcher.FindAllStringSubmatch(q.LabelSelector, -1) {
					labels = append(labels, m[1])
				}
				profile(p.Title, q.ProfileTypeID, labels...)
			case "prometheus":
				found := promSelector.FindAllStringSubmatch(q.Expr, -1)
				if len(found) == 0 {
					t.Errorf("%s: no metric in %s", p.Title, q.Expr)
				}
				for _, m := range found {
					queries++
					points, ok := e.metrics[m[1]]
					if !ok {
						t.Errorf("%s: metric %s is not sent", p.Title, m[1])
					}
					var labels []string
					for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
						labels = append(labels, l[1])
					}
					for _, by := range promBy.FindAllStringSubmatch(q.Expr, -1) {
						labels = append(labels, strings.Split(strings.ReplaceAll(by[1], " ", ""), ",")...)
					}
					for _, l := range labels {
						if !points[l] && !slices.Contains(resource, l) {
							t.Errorf("%s: metric %s has no label %s", p.Title, m[1], l)
						}
					}
				}
			case "loki":
				queries++
				_, phrases, _ := strings.Cut(q.Expr, "|~ \"")
				for phrase := range strings.SplitSeq(strings.TrimSuffix(phrases, "\""), "|") {
					if !slices.ContainsFunc(e.bodies, func(b string) bool { return strings.Contains(b, phrase) }) {
						t.Errorf("%s: no log record says %q; they say %q", p.Title, phrase, e.bodies)
					}
				}
			default:
				t.Errorf("%s: data source %q", p.Title, q.Datasource.Type)
			}
		}
	}
	for _, v := range dashboard.Templating.List {
		var q struct{ ProfileTypeID, LabelName string }
		if json.Unmarshal(v.Query, &q) == nil && q.LabelName != "" {
			profile("variable "+v.Name, q.ProfileTypeID, q.LabelName)
		}
	}
	if queries < 14 {
		t.Errorf("%d queries were looked at", queries)
	}
}
