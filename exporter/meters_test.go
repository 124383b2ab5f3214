// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/heapwire/heapwire/exporter/sink"
	"github.com/heapwire/heapwire/exporter/spool"
)

type counting struct{ *memory }

func (counting) Counts() map[string]int { return map[string]int{"restamped": 4} }

func TestWhatHappensIsMeasured(t *testing.T) {
	p := newPlace(t)
	p.folder(4194301, 1, "000001.interval.heap", "a=1", "000002.interval.heap", "a=1", "000003.interval.heap", "a=1", "000004.interval.heap", "bad",
		"000005.interval.heap", "a=1")
	m := counting{&memory{name: "m", export: func(_ context.Context, attempt int, it *sink.Item) error {
		switch {
		case it.Seq == 3:
			return sink.Permanent(errors.New("400"))
		case attempt == 1:
			return errors.New("not now")
		}
		return nil
	}}}
	reader := sdk.NewManualReader()
	pipeline := p.start(func(c *Config) {
		c.Meters = sdk.NewMeterProvider(sdk.WithReader(reader))
		c.Limits = spool.Limits{Files: 4}
	}, m)
	p.finish(pipeline)

	var collected metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &collected); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, metric := range collected.ScopeMetrics[0].Metrics {
		switch data := metric.Data.(type) {
		case metricdata.Sum[int64]:
			for _, d := range data.DataPoints {
				got[metric.Name+fmt.Sprint(d.Attributes.ToSlice())] = fmt.Sprint(d.Value)
			}
		case metricdata.Gauge[int64]:
			got[metric.Name] = fmt.Sprint(data.DataPoints[0].Value)
		case metricdata.Histogram[float64]:
			for _, d := range data.DataPoints {
				outcome, _ := d.Attributes.Value("outcome")
				got[metric.Name+" "+outcome.AsString()] = fmt.Sprint(d.Count)
			}
		}
	}
	in := func(name string, attrs ...string) string {
		text := "["
		for i := 0; i < len(attrs); i += 2 {
			if i > 0 {
				text += " "
			}
			text += fmt.Sprintf("{%q:%q}", attrs[i], attrs[i+1])
		}
		return "heapwire.exporter." + name + text + "]"
	}
	want := map[string]string{
		in("dumps"):                 "5",
		in("accepted", "sink", "m"): "2",
		in("refused", "reason", "refused", "sink", "m"):  "1",
		in("refused", "reason", "given_up", "sink", "m"): "0",
		in("dropped", "reason", "unreadable"):            "1",
		in("dropped", "reason", "files"):                 "1",
		in("retried", "sink", "m"):                       "1",
		in("bytes", "sink", "m"):                         "6",
		in("special", "kind", "restamped", "sink", "m"):  "4",
		in("processes.killed"):                           "1",
		"heapwire.exporter.spool.depth":                  "0",
		"heapwire.exporter.spool.oldest":                 "0",
		"heapwire.exporter.conversion.duration ok":       "3",
		"heapwire.exporter.conversion.duration failed":   "1",
		"heapwire.exporter.delivery.duration ok":         "2",
		"heapwire.exporter.delivery.duration failed":     "1",
		"heapwire.exporter.delivery.duration refused":    "1",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got\n%v\nwant\n%v", got, want)
	}
}
