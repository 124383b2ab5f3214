// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"encoding/hex"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/heapwire/heapwire/exporter/sink"
)

// EventVerdict is the event name of the log record that says what the figures of a process mean.
const EventVerdict = "heapwire.verdict"

// harmless are the kinds that nobody needs to be woken for.
var harmless = map[string]bool{"plateau": true, "spike": true, "rounding": true}

// putVerdict carries the stack by the semantic conventions for code, so that an alert on the record has it.
func putVerdict(r plog.LogRecord, v *sink.Verdict) {
	r.SetEventName(EventVerdict)
	r.SetSeverityNumber(plog.SeverityNumberWarn)
	r.SetSeverityText("WARN")
	if harmless[v.Kind] {
		r.SetSeverityNumber(plog.SeverityNumberInfo)
		r.SetSeverityText("INFO")
	}
	if !v.Time.IsZero() {
		r.SetTimestamp(pcommon.NewTimestampFromTime(v.Time))
	}
	r.Body().SetStr(v.Says)
	a := r.Attributes()
	a.PutStr("heapwire.verdict.kind", v.Kind)
	a.PutInt("heapwire.verdict.bytes", v.Bytes)
	a.PutDouble("heapwire.verdict.confidence", v.Confidence)
	a.PutStr("heapwire.verdict.advice", v.Helps)
	for key, value := range v.Numbers {
		a.PutDouble("heapwire.verdict."+key, value)
	}
	putSnapshot(a, v.Snapshot)
	if v.ProfileID != ([16]byte{}) {
		a.PutStr("profile_id", hex.EncodeToString(v.ProfileID[:]))
	}
	if v.Function != "" {
		a.PutStr(string(semconv.CodeFunctionNameKey), v.Function)
	}
	if v.File != "" {
		a.PutStr(string(semconv.CodeFilePathKey), v.File)
	}
	if v.Line > 0 {
		a.PutInt(string(semconv.CodeLineNumberKey), v.Line)
	}
	if len(v.Stack) > 0 {
		a.PutStr(string(semconv.CodeStacktraceKey), strings.Join(v.Stack, "\n"))
	}
}
