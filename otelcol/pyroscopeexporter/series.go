// SPDX-License-Identifier: Apache-2.0

package pyroscopeexporter

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"regexp"
	"slices"
	"strings"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/exporter/pyroscope"
	"github.com/heapwire/heapwire/exporter/sink"
)

// push is one profile with the series it goes to.
type push struct {
	item   sink.Item
	series pyroscope.Series
}

// Reasons for which samples are dropped, beside those of otlp.Read.
const (
	droppedNegative = "negative" // the server drops such samples without a word
	droppedOverflow = "overflow" // above 2^63-1 in the unit that the server knows
)

// namer gives the first half of a profile type's id.
type namer []struct {
	sampleType *regexp.Regexp
	name       string
}

// builtinNames are those that Pyroscope and Grafana know; anything else is called what its sample type is called.
var builtinNames = []NameRule{
	{SampleType: "(inuse|alloc)_(space|objects):.*", Name: "memory"},
	{SampleType: "cpu:nanoseconds", Name: "process_cpu"},
}

func newNamer(rules []NameRule) (namer, error) {
	var n namer
	for _, rule := range slices.Concat(rules, builtinNames) {
		expression, err := regexp.Compile("^(?:" + rule.SampleType + ")$")
		if err != nil {
			return nil, fmt.Errorf("profile_name: %w", err)
		}
		n = append(n, struct {
			sampleType *regexp.Regexp
			name       string
		}{expression, rule.Name})
	}
	return n, nil
}

func (n namer) name(t *profile.ValueType) string {
	for _, rule := range n {
		if rule.sampleType.MatchString(t.Type + ":" + t.Unit) {
			return rule.name
		}
	}
	return t.Type
}

// pushes makes of a profile what is to be pushed: one for each name among its sample types.
func (e *pyroscopeExporter) pushes(p *otlp.Pprof) (out []push, dropped map[string]int) {
	dropped = map[string]int{}
	src := p.Profile
	cpuTime(src, dropped)
	negative := len(src.Sample)
	src.Sample = slices.DeleteFunc(src.Sample, func(s *profile.Sample) bool {
		return slices.ContainsFunc(s.Value, func(v int64) bool { return v < 0 })
	})
	if negative -= len(src.Sample); negative > 0 {
		dropped[droppedNegative] += negative
	}
	for _, s := range src.Sample {
		s.Label, s.NumLabel, s.NumUnit = e.labels(s.Label), nil, nil
	}
	var names []string
	columns := map[string][]int{}
	for i, t := range src.SampleType {
		if e.cfg.Alloc == allocDrop && strings.HasPrefix(t.Type, "alloc_") && p.Attributes["view"] != "alloc" {
			continue
		}
		name := e.namer.name(t)
		if columns[name] == nil {
			names = append(names, name)
		}
		columns[name] = append(columns[name], i)
	}
	for _, name := range names {
		out = append(out, e.one(p, name, only(src, columns[name])))
	}
	return out, dropped
}

// labels keeps those attributes of a sample that are to split the series.
func (e *pyroscopeExporter) labels(all map[string][]string) map[string][]string {
	var kept map[string][]string
	for attribute, values := range all {
		label := e.cfg.ProfileLabels[attribute]
		if label == "" || len(values) == 0 {
			continue
		}
		if kept == nil {
			kept = map[string][]string{}
		}
		kept[label] = values[:1]
	}
	return kept
}

// cpuTime turns a count of samples of CPU time into the time: Grafana knows process_cpu:cpu:nanoseconds:cpu:nanoseconds.
func cpuTime(p *profile.Profile, dropped map[string]int) {
	isCPU := func(t *profile.ValueType) bool { return t != nil && t.Type == "cpu" && t.Unit == "nanoseconds" }
	at := slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == "samples" && t.Unit == "count" })
	if at < 0 || !isCPU(p.PeriodType) || p.Period <= 0 || slices.ContainsFunc(p.SampleType, isCPU) {
		return
	}
	p.SampleType[at] = &profile.ValueType{Type: "cpu", Unit: "nanoseconds"}
	before := len(p.Sample)
	p.Sample = slices.DeleteFunc(p.Sample, func(s *profile.Sample) bool {
		v := s.Value[at]
		if v <= 0 {
			return false // negative ones are dropped for what they are
		}
		high, low := bits.Mul64(uint64(v), uint64(p.Period))
		if high != 0 || low > 1<<63-1 {
			return true
		}
		s.Value[at] = int64(low)
		return false
	})
	if n := before - len(p.Sample); n > 0 {
		dropped[droppedOverflow] += n
	}
}

// only is a profile with some of its sample types. The server takes no "-" in one.
func only(p *profile.Profile, columns []int) *profile.Profile {
	out := &profile.Profile{
		PeriodType: p.PeriodType, Period: p.Period, TimeNanos: p.TimeNanos, DurationNanos: p.DurationNanos,
		Mapping: p.Mapping, Location: p.Location, Function: p.Function, Sample: make([]*profile.Sample, len(p.Sample)),
	}
	for _, c := range columns {
		t := p.SampleType[c]
		out.SampleType = append(out.SampleType, &profile.ValueType{Type: strings.ReplaceAll(t.Type, "-", "_"), Unit: t.Unit})
	}
	for i, s := range p.Sample {
		row := *s
		row.Value = make([]int64, len(columns))
		for j, c := range columns {
			row.Value[j] = s.Value[c]
		}
		out.Sample[i] = &row
	}
	return out
}

func (e *pyroscopeExporter) one(p *otlp.Pprof, name string, body *profile.Profile) push {
	resource := p.Resource.Attributes()
	text := func(attribute string) string {
		v, ok := resource.Get(attribute)
		if !ok || v.Type() == pcommon.ValueTypeMap || v.Type() == pcommon.ValueTypeSlice {
			return ""
		}
		return v.AsString()
	}
	series := pyroscope.NewSeries(name, text("service.name"))
	if e.cfg.TenantAttribute != "" {
		series.Tenant = text(e.cfg.TenantAttribute)
	}
	for _, attribute := range sortedKeys(p.Attributes) {
		series.Add(e.cfg.ProfileLabels[attribute], p.Attributes[attribute])
	}
	for _, attribute := range sortedKeys(e.cfg.ResourceLabels) {
		series.Add(e.cfg.ResourceLabels[attribute], text(attribute))
	}
	slices.SortFunc(series.Labels, func(a, b pyroscope.Label) int { return cmp.Compare(a.Name, b.Name) })

	it := sink.Item{
		Base: name, Time: p.Time, Duration: p.Duration, View: p.Attributes["view"], Profile: body, ProfileID: id(p, series, body),
		Process: strings.Trim(text("service.name")+" "+text("host.name")+" "+text("process.pid"), " "),
	}
	if it.Time.IsZero() {
		it.Time = e.now()
	}
	switch {
	case e.cfg.Alloc == allocKeep:
		it.View = "alloc"
	case e.cfg.Alloc == allocDelta:
		it.Process, it.Seq = process(resource, series), uint64(max(it.Time.UnixNano(), 2))
	}
	return push{it, series}
}

// process names whose counters follow each other: one process, one kind of memory of it.
func process(resource pcommon.Map, series pyroscope.Series) string {
	h := sha256.New()
	for _, attribute := range []string{"service.instance.id", "host.name", "container.id", "k8s.pod.uid", "process.pid", "process.creation.time"} {
		if v, ok := resource.Get(attribute); ok {
			fmt.Fprintf(h, "%s=%q\n", attribute, v.AsString())
		}
	}
	fmt.Fprintf(h, "%q", series)
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// id names a profile, so that a repeat of one that was split goes on where it stopped.
func id(p *otlp.Pprof, series pyroscope.Series, body *profile.Profile) (id [16]byte) {
	h := sha256.New()
	h.Write(p.ProfileID[:])
	fmt.Fprintf(h, "%q %d %d %d", series, p.Time.UnixNano(), p.Duration, len(body.Sample))
	for i, t := range body.SampleType {
		var sum uint64
		for _, s := range body.Sample {
			sum += uint64(s.Value[i])
		}
		_ = binary.Write(h, binary.BigEndian, sum)
		fmt.Fprintf(h, "%q", t.Type)
	}
	copy(id[:], h.Sum(nil))
	return id
}
