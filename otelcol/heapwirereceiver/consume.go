// SPDX-License-Identifier: Apache-2.0

package heapwirereceiver

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/receiver/receiverhelper/xreceiverhelper"

	convert "github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/exporter/otlp"
	"github.com/heapwire/heapwire/exporter/sink"
)

// outcome is a consumer's answer in the words of the pipeline: what is not permanent is tried again, and stays in the spool
// until then.
func outcome(err error) error {
	if consumererror.IsPermanent(err) {
		return sink.Permanent(err)
	}
	return err
}

// consumers are the next consumers as the sinks of one folder's pipeline.
type consumers struct {
	*heapwireReceiver
	format    string // "heap" or "snapshot", for what is reported of the receiver
	delivered *positions
	progress  sink.Progress
}

type profileSink struct{ *consumers }
type metricSink struct{ *consumers }
type logSink struct{ *consumers }

var (
	_ sink.Sink      = profileSink{}
	_ sink.Sink      = metricSink{}
	_ sink.EventSink = logSink{}
)

// Name names the sink in the spool's notes of what was delivered.
func (profileSink) Name() string { return "collector-profiles" }
func (metricSink) Name() string  { return "collector-metrics" }
func (logSink) Name() string     { return "collector-logs" }

// Close does nothing: the consumers are the Collector's.
func (*consumers) Close(context.Context) error { return nil }

// Export hands on one profile, in parts if it is large. After an error it goes on where it stopped.
func (s profileSink) Export(ctx context.Context, it *sink.Item) error {
	if it.Kind != "host" && len(s.cfg.Views) > 0 && !slices.Contains(s.cfg.Views, it.View) {
		return nil
	}
	return s.delivered.once(ctx, position("profile", it.ProfileID), func() error {
		parts, err := s.parts(it, it.Profile, it.ProfileID)
		if err != nil {
			return sink.Permanent(err)
		}
		for i := s.progress.Done(it.ProfileID); i < len(parts); i++ {
			ctx := s.observe.profiles.StartProfilesOp(ctx)
			samples := xreceiverhelper.ProfileSampleCountsByType(parts[i]) // before it is handed on: it may be changed there
			err := s.profiles.ConsumeProfiles(ctx, parts[i])
			s.observe.profiles.EndProfilesOpBySampleType(ctx, s.format, samples, err)
			if err != nil {
				s.progress.Keep(it.ProfileID, i)
				return outcome(err)
			}
		}
		s.progress.Forget(it.ProfileID)
		return nil
	})
}

func (s profileSink) parts(it *sink.Item, p *profile.Profile, id [16]byte) ([]pprofile.Profiles, error) {
	opts := otlp.Options(it, s.set.BuildInfo.Version)
	opts.ProfileID = id
	pd, err := convert.Build(p, opts)
	if err != nil || convert.Empty(pd) {
		return nil, err
	}
	size := (&pprofile.ProtoMarshaler{}).ProfilesSize(pd)
	if size <= s.cfg.MaxRequestSize {
		s.resource(pd.ResourceProfiles().At(0).Resource().Attributes(), it.Identity)
		return []pprofile.Profiles{pd}, nil
	}
	if len(p.Sample) < 2 {
		return nil, fmt.Errorf("one stack alone takes %d bytes, max_request_size is %d", size, s.cfg.MaxRequestSize)
	}
	var out []pprofile.Profiles
	for _, piece := range otlp.Cut(p, id, size/s.cfg.MaxRequestSize+1) {
		more, err := s.parts(it, piece.Profile, piece.ID)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// Export hands on the figures of one dump.
func (s metricSink) Export(ctx context.Context, it *sink.Item) error {
	metrics := otlp.MetricsOf(it, s.set.BuildInfo.Version)
	points := metrics.DataPointCount()
	if points == 0 {
		return nil
	}
	return s.delivered.once(ctx, position("metrics", it.ProfileID), func() error {
		s.resource(metrics.ResourceMetrics().At(0).Resource().Attributes(), it.Identity)
		ctx := s.observe.others.StartMetricsOp(ctx)
		err := s.metrics.ConsumeMetrics(ctx, metrics)
		s.observe.others.EndMetricsOp(ctx, s.format, points, err)
		return outcome(err)
	})
}

// ExportEvent hands on what is told of a process beside its profiles.
func (s logSink) ExportEvent(ctx context.Context, ev *sink.Event) error {
	logs := otlp.LogsOf(ev, s.set.BuildInfo.Version)
	return s.delivered.once(ctx, eventPosition(logs), func() error {
		s.resource(logs.ResourceLogs().At(0).Resource().Attributes(), ev.Identity)
		ctx := s.observe.others.StartLogsOp(ctx)
		err := s.logs.ConsumeLogs(ctx, logs)
		s.observe.others.EndLogsOp(ctx, s.format, logs.LogRecordCount(), err)
		return outcome(err)
	})
}
