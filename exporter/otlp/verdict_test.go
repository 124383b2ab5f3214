// SPDX-License-Identifier: Apache-2.0

package otlp_test

import (
	"encoding/hex"
	"maps"
	"testing"
	"time"

	"github.com/heapwire/heapwire/convert/otlp/profiletest"
	"github.com/heapwire/heapwire/exporter/otlp"
	"github.com/heapwire/heapwire/exporter/sink"
)

func TestAVerdictIsALogRecordWithItsStack(t *testing.T) {
	it := item(nil)
	ev := &sink.Event{
		Identity: it.Identity, Process: it.Process, Observed: profiletest.When.Add(time.Minute),
		Verdict: &sink.Verdict{
			Snapshot: sink.Snapshot{Seq: 7, Reason: "interval", Kind: "host", Step: 40}, Time: profiletest.When, ProfileID: it.ProfileID,
			Kind: "leak", Bytes: 1 << 30, Says: "it grows", Helps: "clear it", Numbers: map[string]float64{"growth_per_step": 1024}, Confidence: 0.999,
			Function: "Scheduler.add", File: "/app/scheduler.py", Line: 41, Stack: []string{"Scheduler.add /app/scheduler.py:41", "main /app/main.py:3"},
		},
	}
	record := otlp.LogsOf(ev, "0.1.0").ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0)
	want := map[string]any{
		"heapwire.verdict.kind": "leak", "heapwire.verdict.bytes": int64(1 << 30), "heapwire.verdict.confidence": 0.999, "heapwire.verdict.advice": "clear it",
		"heapwire.verdict.growth_per_step": 1024.0, "memory_kind": "host", "heapwire.seq": int64(7), "heapwire.reason": "interval", "heapwire.step": int64(40),
		"profile_id": hex.EncodeToString(it.ProfileID[:]), "code.function.name": "Scheduler.add", "code.file.path": "/app/scheduler.py",
		"code.line.number": int64(41), "code.stacktrace": "Scheduler.add /app/scheduler.py:41\nmain /app/main.py:3",
	}
	if got := record.Attributes().AsRaw(); !maps.Equal(got, want) {
		t.Errorf("attributes\n%v\nwant\n%v", got, want)
	}
	if record.EventName() != "heapwire.verdict" || record.SeverityText() != "WARN" || record.Body().Str() != "it grows" || !record.Timestamp().AsTime().Equal(profiletest.When) {
		t.Errorf("record %q %q %q %v", record.EventName(), record.SeverityText(), record.Body().Str(), record.Timestamp())
	}
	ev.Verdict = &sink.Verdict{Kind: "plateau", Snapshot: sink.Snapshot{Kind: "host", Step: -1}}
	if record := otlp.LogsOf(ev, "").ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0); record.SeverityText() != "INFO" {
		t.Errorf("a plateau is %s", record.SeverityText())
	}
}
