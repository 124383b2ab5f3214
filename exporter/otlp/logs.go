// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"golang.org/x/sys/unix"

	convert "github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/exporter/sink"
)

// EventKilled is the event name of the log record that tells of a killed process.
const EventKilled = "heapwire.process.killed"

// LogSink sends events as log records to one OTLP receiver.
type LogSink struct{ *client }

var (
	_ sink.EventSink = (*LogSink)(nil)
	_ sink.Addressed = (*LogSink)(nil)
)

// NewLogs makes a sink for events.
func NewLogs(cfg Config) (*LogSink, error) {
	c, err := open(cfg, wires[Logs])
	if err != nil {
		return nil, err
	}
	return &LogSink{c}, nil
}

// Name is "otlp-logs".
func (s *LogSink) Name() string { return "otlp-logs" }

// ExportEvent sends one log record.
func (s *LogSink) ExportEvent(ctx context.Context, ev *sink.Event) error {
	fail := func(err error) error {
		return fmt.Errorf("sending %s of %s to %s: %w", what(ev), ev.Process, s.cfg.Endpoint, err)
	}
	request := plogotlp.NewExportRequestFromLogs(LogsOf(ev, s.cfg.Version))
	encode := request.MarshalProto
	if s.cfg.Protocol == HTTPJSON {
		encode = request.MarshalJSON
	}
	body, err := encode()
	if err != nil {
		return fail(sink.Permanent(fmt.Errorf("encoding a log record: %w", err)))
	}
	if err := s.send(ctx, body, ev.Process, "log records"); err != nil {
		return fail(err)
	}
	return nil
}

// what says what an event tells, in messages.
func what(ev *sink.Event) string {
	switch {
	case ev.OOM != nil:
		return "an out-of-memory error"
	case ev.Window != nil:
		return "the start of a history"
	case ev.Verdict != nil:
		return "the verdict " + ev.Verdict.Kind
	}
	return "the end"
}

// LogsOf is an event as a log record. Figures keep the names that they have as metrics.
func LogsOf(ev *sink.Event, version string) plog.Logs {
	logs := plog.NewLogs()
	rl := logs.ResourceLogs().AppendEmpty()
	putResource(rl.Resource(), ev.Identity)
	sl := rl.ScopeLogs().AppendEmpty()
	sl.Scope().SetName(convert.ScopeName)
	sl.Scope().SetVersion(version)
	r := sl.LogRecords().AppendEmpty()
	r.SetObservedTimestamp(pcommon.NewTimestampFromTime(ev.Observed))
	switch {
	case ev.OOM != nil:
		putOOM(r, ev)
	case ev.Window != nil:
		putWindow(r, ev)
	case ev.Verdict != nil:
		putVerdict(r, ev.Verdict)
	default:
		putEnd(r, ev)
	}
	return logs
}

func putEnd(r plog.LogRecord, ev *sink.Event) {
	r.SetEventName(EventKilled)
	r.SetSeverityNumber(plog.SeverityNumberFatal)
	r.SetSeverityText("FATAL")
	if !ev.Ended.IsZero() {
		r.SetTimestamp(pcommon.NewTimestampFromTime(ev.Ended))
	}
	r.Body().SetStr(describe(ev))
	a := r.Attributes()
	if ev.Signal != 0 {
		a.PutInt("heapwire.exit.signal.number", int64(ev.Signal))
		a.PutStr("heapwire.exit.signal.name", signalName(ev.Signal))
	}
	if ev.OOMKills >= 0 {
		a.PutInt("heapwire.cgroup.oom_kills", ev.OOMKills)
	}
	if last := ev.Last; last != nil {
		a.PutStr("profile_id", hex.EncodeToString(last.ProfileID[:]))
		a.PutInt("heapwire.last.seq", int64(last.Seq))
		a.PutStr("heapwire.last.reason", last.Reason)
		a.PutStr("heapwire.last.time", last.Time.UTC().Format(time.RFC3339Nano))
		a.PutInt(metricLive, last.Live)
		for _, f := range figures {
			if v, ok := last.Figures[f.key]; ok {
				a.PutInt(f.name, v)
			}
		}
		putTop(a, last.Top)
	}
}

func signalName(signal int) string {
	if name := unix.SignalName(unix.Signal(signal)); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", signal)
}

// describe tells an event in a sentence or two.
func describe(ev *sink.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "process %d of %s ended without its last dump", ev.Identity.PID, ev.Identity.ServiceName)
	if ev.Signal != 0 {
		b.Reset()
		fmt.Fprintf(&b, "process %d of %s was killed by %s", ev.Identity.PID, ev.Identity.ServiceName, signalName(ev.Signal))
	}
	if ev.OOMKills > 0 {
		fmt.Fprintf(&b, "; the kernel killed %d of its cgroup for want of memory", ev.OOMKills)
	}
	if last := ev.Last; last != nil {
		fmt.Fprintf(&b, "; its last dump, at %s, held %d bytes", last.Time.UTC().Format(time.RFC3339), last.Live)
		if len(last.Top) > 0 && len(last.Top[0].Frames) > 0 {
			fmt.Fprintf(&b, ", %d of them from %s", last.Top[0].Bytes, placeOf(last.Top[0].Frames[0]))
		}
	}
	return b.String()
}

func putResource(r pcommon.Resource, id sink.Identity) {
	for k, v := range id.Attributes() {
		switch v := v.(type) {
		case int64:
			r.Attributes().PutInt(k, v)
		case string:
			r.Attributes().PutStr(k, v)
		}
	}
}
