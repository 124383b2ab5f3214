// SPDX-License-Identifier: Apache-2.0

package pyroscopetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/google/pprof/profile"
	googlev1 "github.com/grafana/pyroscope/api/gen/proto/go/google/v1"
	querierv1 "github.com/grafana/pyroscope/api/gen/proto/go/querier/v1"
	typesv1 "github.com/grafana/pyroscope/api/gen/proto/go/types/v1"
	"google.golang.org/protobuf/proto"
)

// selected is a profile of a series that a query asks for: what a push became, which the server splits by the text labels of
// its samples.
type selected struct {
	push    Push
	samples []*profile.Sample
	column  int
}

// query gives what fits. Times are in milliseconds, both ends included.
func (s *Server) query(profileType, selector string, start, end int64) ([]selected, error) {
	want, err := matchers(selector)
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	parts := strings.Split(profileType, ":")
	if len(parts) != 5 {
		return nil, invalid("profile-type selection must be of the form <name>:<sample-type>:<sample-unit>:<period-type>:<period-unit>")
	}
	var out []selected
	for _, p := range s.Pushes() {
		t := p.Profile.PeriodType
		column := slices.IndexFunc(p.Profile.SampleType, func(st *profile.ValueType) bool { return st.Type == parts[1] && st.Unit == parts[2] })
		at := p.Profile.TimeNanos / 1e6
		if p.Labels["__name__"] != parts[0] || column < 0 || t == nil || t.Type != parts[3] || t.Unit != parts[4] || at < start || at > end {
			continue
		}
		series := map[string]*selected{}
		var order []string
		for _, sample := range p.Profile.Sample {
			labels := map[string]string{}
			for k, v := range p.Labels {
				labels[k] = v
			}
			for k, v := range sample.Label {
				labels[k] = v[0]
			}
			if slices.ContainsFunc(want, func(m [2]string) bool { return labels[m[0]] != m[1] }) {
				continue
			}
			key := fmt.Sprint(labels)
			if series[key] == nil {
				series[key] = &selected{push: p, column: column}
				order = append(order, key)
			}
			series[key].samples = append(series[key].samples, sample)
		}
		for _, key := range order {
			out = append(out, *series[key])
		}
	}
	return out, nil
}

// matchers reads {a="x",b="y"}; the real server knows more operators than =.
func matchers(selector string) ([][2]string, error) {
	rest, ok := strings.CutPrefix(selector, "{")
	if !ok || !strings.HasSuffix(rest, "}") {
		return nil, fmt.Errorf("parse error: unexpected %q", selector)
	}
	rest = rest[:len(rest)-1]
	var out [][2]string
	for rest != "" {
		name, after, ok := strings.Cut(rest, "=")
		quoted, err := strconv.QuotedPrefix(after)
		if !ok || err != nil {
			return nil, fmt.Errorf("parse error: unexpected %q", rest)
		}
		value, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, errors.New("parse error: bad string")
		}
		out = append(out, [2]string{name, value})
		rest = strings.TrimPrefix(after[len(quoted):], ",")
	}
	return out, nil
}

// SelectMergeProfile sums over time and series, as the real one does: nothing in it takes a mean.
func (s *Server) SelectMergeProfile(_ context.Context, req *connect.Request[querierv1.SelectMergeProfileRequest]) (*connect.Response[googlev1.Profile], error) {
	m := req.Msg
	found, err := s.query(m.ProfileTypeID, m.LabelSelector, m.Start, m.End)
	if err != nil {
		return nil, err
	}
	out := &googlev1.Profile{}
	if len(found) == 0 {
		return connect.NewResponse(out), nil
	}
	var all []*profile.Profile
	for _, f := range found {
		one := f.push.Profile.Copy()
		one.SampleType = []*profile.ValueType{one.SampleType[f.column]}
		one.Sample = nil
		locations := map[uint64]*profile.Location{}
		for _, l := range one.Location {
			locations[l.ID] = l
		}
		for _, sample := range f.samples {
			row := &profile.Sample{Value: []int64{sample.Value[f.column]}}
			for _, l := range sample.Location {
				row.Location = append(row.Location, locations[l.ID])
			}
			one.Sample = append(one.Sample, row)
		}
		all = append(all, one)
	}
	merged, err := profile.Merge(all)
	if err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	var raw bytes.Buffer
	if err := merged.WriteUncompressed(&raw); err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	if err := proto.Unmarshal(raw.Bytes(), out); err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return connect.NewResponse(out), nil
}

// SelectHeatmap tells how many profiles there are, in slots of time; all of a slot are in one bucket here.
func (s *Server) SelectHeatmap(_ context.Context, req *connect.Request[querierv1.SelectHeatmapRequest]) (*connect.Response[querierv1.SelectHeatmapResponse], error) {
	m := req.Msg
	if m.Step <= 0 {
		return nil, invalid("step must be positive")
	}
	if m.QueryType != querierv1.HeatmapQueryType_HEATMAP_QUERY_TYPE_INDIVIDUAL {
		return nil, invalid("query type %s", m.QueryType)
	}
	found, err := s.query(m.ProfileTypeID, m.LabelSelector, m.Start, m.End)
	if err != nil {
		return nil, err
	}
	out := &querierv1.SelectHeatmapResponse{}
	slots := map[int64]*typesv1.HeatmapSlot{}
	series := &typesv1.HeatmapSeries{}
	step := int64(m.Step * 1000)
	for _, f := range found {
		at := m.Start + (f.push.Profile.TimeNanos/1e6-m.Start+step-1)/step*step
		if slots[at] == nil {
			slots[at] = &typesv1.HeatmapSlot{Timestamp: at, YMin: []float64{0}, Counts: []int32{0}}
			series.Slots = append(series.Slots, slots[at])
		}
		slots[at].Counts[0]++
	}
	if len(found) > 0 {
		out.Series = append(out.Series, series)
	}
	return connect.NewResponse(out), nil
}
