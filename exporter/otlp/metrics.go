// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"fmt"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	convert "github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/exporter/sink"
)

// metricLive is the sum of a profile's inuse_space.
const metricLive = "heapwire.heap.live"

// form is a metric's instrument: what the figure means to those who add it up.
type form int

const (
	level form = iota // goes up and down, and adds up over processes
	count             // only grows, from the process's start
	state             // goes up and down, and does not add up
)

// figures are the keys of HEAPWIRE_META (docs/spool.md) with the metrics they become. process.memory.usage and
// container.memory.usage are the semantic conventions'; nothing there speaks of allocators.
var figures = []struct {
	key, name, unit, description string
	form                         form
}{
	{"rss", "process.memory.usage", "By", "The amount of physical memory in use.", level},
	{"cgroup_current", "container.memory.usage", "By", "Memory usage of the container.", state},
	{"cgroup_max", "heapwire.cgroup.memory.limit", "By", "Memory limit of the process's cgroup.", state},
	{"pss", "heapwire.memory.pss", "By", "Resident memory, shared pages by their share.", level},
	{"anon", "heapwire.memory.anonymous", "By", "Resident anonymous memory.", level},
	{"file", "heapwire.memory.file", "By", "Resident file mappings.", level},
	{"shmem", "heapwire.memory.shared", "By", "Resident shared memory.", level},
	{"swap", "heapwire.memory.swap", "By", "Anonymous memory that is swapped out.", level},
	{"part_allocator", "heapwire.memory.part.allocator", "By", "Resident memory that jemalloc has mapped.", level},
	{"part_python_arenas", "heapwire.memory.part.python_arenas", "By", "Resident memory of pymalloc's arenas.", level},
	{"part_stacks", "heapwire.memory.part.stacks", "By", "Resident memory of the threads' stacks.", level},
	{"part_heap", "heapwire.memory.part.heap", "By", "Resident memory of the brk heap.", level},
	{"part_files", "heapwire.memory.part.files", "By", "Resident memory of mapped files, changed pages too.", level},
	{"part_shared", "heapwire.memory.part.shared", "By", "Resident shared memory, by its mappings.", level},
	{"part_other", "heapwire.memory.part.other", "By", "Resident anonymous memory outside of any allocator.", level},
	{"python_arena_bytes", "heapwire.python.arenas", "By", "Size of pymalloc's arenas.", level},
	{"python_block_bytes", "heapwire.python.blocks", "By", "Bytes of pymalloc's blocks in use.", level},
	{"thread_stacks", "heapwire.stacks.threads", "{stack}", "Stacks of threads.", level},
	{"allocated", "jemalloc.allocated", "By", "Bytes allocated by the application.", level},
	{"active", "jemalloc.active", "By", "Bytes in active pages.", level},
	{"metadata", "jemalloc.metadata", "By", "Bytes of the allocator's own metadata.", level},
	{"resident", "jemalloc.resident", "By", "Bytes in physically resident pages mapped by the allocator.", level},
	{"mapped", "jemalloc.mapped", "By", "Bytes in active extents mapped by the allocator.", level},
	{"retained", "jemalloc.retained", "By", "Bytes in virtual memory mappings retained by the allocator.", level},
	{"inherited_bytes", "heapwire.heap.inherited", "By", "Live heap at the fork, which the process's samples leave out.", level},
	{"samples", "heapwire.samples", "{sample}", "Stacks captured.", count},
	{"samples_python", "heapwire.samples.python", "{sample}", "Stacks with a Python frame.", count},
	{"stacks_cut", "heapwire.stacks.cut", "{stack}", "Captures that lost frames in the middle.", count},
	{"captures_lost", "heapwire.captures.lost", "{sample}", "Captures without any stack.", count},
	{"frames_failed", "heapwire.frames.failed", "{stack}", "Python walks that stopped early.", count},
	{"native_failed", "heapwire.native.failed", "{stack}", "Native walks that ended early.", count},
	{"functions", "heapwire.functions", "{function}", "Rows in the function table.", count},
	{"functions_dropped", "heapwire.functions.dropped", "{frame}", "Frames that found no room in the function table.", count},
	{"dumps_failed", "heapwire.dumps.failed", "{dump}", "Dumps that could not be written since the last one that could.", state},
	{"step", "heapwire.step", "{step}", "Training step.", state},
}

// MetricSink sends the figures of each dump to one OTLP receiver.
type MetricSink struct{ *client }

var (
	_ sink.Sink      = (*MetricSink)(nil)
	_ sink.Addressed = (*MetricSink)(nil)
)

// NewMetrics makes a sink for the figures of dumps.
func NewMetrics(cfg Config) (*MetricSink, error) {
	c, err := open(cfg, wires[Metrics])
	if err != nil {
		return nil, err
	}
	return &MetricSink{c}, nil
}

// Name is "otlp-metrics".
func (s *MetricSink) Name() string { return "otlp-metrics" }

// Export sends the figures of one item.
func (s *MetricSink) Export(ctx context.Context, it *sink.Item) error {
	metrics := MetricsOf(it, s.cfg.Version)
	if metrics.DataPointCount() == 0 {
		return nil
	}
	request := pmetricotlp.NewExportRequestFromMetrics(metrics)
	encode := request.MarshalProto
	if s.cfg.Protocol == HTTPJSON {
		encode = request.MarshalJSON
	}
	body, err := encode()
	if err != nil {
		return s.fail(it, sink.Permanent(fmt.Errorf("encoding metrics: %w", err)))
	}
	if err := s.send(ctx, body, it.Process+"/"+it.Base, "data points"); err != nil {
		return s.fail(it, err)
	}
	return nil
}

// MetricsOf gives an item's figures, and the live bytes of its profile, as metrics of its process.
func MetricsOf(it *sink.Item, version string) pmetric.Metrics {
	metrics := pmetric.NewMetrics()
	rm := metrics.ResourceMetrics().AppendEmpty()
	putResource(rm.Resource(), it.Identity)
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName(convert.ScopeName)
	sm.Scope().SetVersion(version)
	add := func(name, unit, description string, f form, value int64) pmetric.NumberDataPoint {
		m := sm.Metrics().AppendEmpty()
		m.SetName(name)
		m.SetUnit(unit)
		m.SetDescription(description)
		var point pmetric.NumberDataPoint
		if f == state {
			point = m.SetEmptyGauge().DataPoints().AppendEmpty()
		} else {
			sum := m.SetEmptySum()
			sum.SetIsMonotonic(f == count)
			sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			point = sum.DataPoints().AppendEmpty()
			if !it.Identity.StartTime.IsZero() {
				point.SetStartTimestamp(pcommon.NewTimestampFromTime(it.Identity.StartTime))
			}
		}
		point.SetTimestamp(pcommon.NewTimestampFromTime(it.Time))
		point.SetIntValue(value)
		return point
	}
	for _, f := range figures {
		if v, ok := it.Figures[f.key]; ok {
			add(f.name, f.unit, f.description, f.form, v)
		}
	}
	for _, g := range it.Gauges {
		point := add(g.Name, g.Unit, g.Description, state, g.Value)
		if strings.HasPrefix(g.Name, "hw.") {
			// The conventions want an id with every metric of hardware, unique within the host.
			point.Attributes().PutStr("hw.id", g.Device)
			continue
		}
		point.Attributes().PutStr("memory_kind", it.Kind)
		point.Attributes().PutStr("device", g.Device)
	}
	for i, t := range it.Profile.SampleType {
		if t.Type != "inuse_space" || it.View != "live" {
			continue
		}
		var live int64
		for _, s := range it.Profile.Sample {
			live += s.Value[i]
		}
		point := add(metricLive, "By", "Live bytes of the profile.", level, live)
		point.Attributes().PutStr("memory_kind", it.Kind)
		if it.Device != "" {
			point.Attributes().PutStr("device", it.Device)
		}
	}
	return metrics
}
