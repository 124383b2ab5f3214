// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/heapwire/heapwire/exporter/sink"
)

// EventException is the event name of the log record that tells of a device that ran out of memory: it is the exception
// that the program saw, by the semantic conventions for exceptions in logs.
const EventException = "exception"

// EventTruncated is the event name of the log record that tells of a history that does not reach back.
const EventTruncated = "heapwire.snapshot.window_truncated"

// exceptionType is what PyTorch raises since 2.5, and torch_npu with it.
const exceptionType = "torch.OutOfMemoryError"

func putSnapshot(a pcommon.Map, s sink.Snapshot) {
	a.PutStr("memory_kind", s.Kind)
	if s.Device != "" {
		a.PutStr("device", s.Device)
	}
	a.PutInt("heapwire.seq", int64(s.Seq))
	a.PutStr("heapwire.reason", s.Reason)
	if s.Step >= 0 {
		a.PutInt("heapwire.step", s.Step)
	}
	if s.Steps != "" {
		a.PutStr("heapwire.steps", s.Steps)
	}
}

func putTop(a pcommon.Map, top []sink.Held) {
	if len(top) == 0 {
		return
	}
	slice := a.PutEmptySlice("heapwire.top")
	for _, h := range top {
		m := slice.AppendEmpty().SetEmptyMap()
		m.PutInt("bytes", h.Bytes)
		m.PutStr("stack", strings.Join(h.Frames, "\n"))
	}
}

func putOOM(r plog.LogRecord, ev *sink.Event) {
	o := ev.OOM
	r.SetEventName(EventException)
	r.SetSeverityNumber(plog.SeverityNumberError)
	r.SetSeverityText("ERROR")
	if !o.Time.IsZero() {
		r.SetTimestamp(pcommon.NewTimestampFromTime(o.Time))
	}
	text := describeOOM(ev)
	r.Body().SetStr(text)
	a := r.Attributes()
	a.PutStr("exception.type", exceptionType)
	a.PutStr("exception.message", text)
	if len(o.Stack) > 0 {
		a.PutStr("exception.stacktrace", strings.Join(o.Stack, "\n"))
	}
	if o.Thread != "" {
		a.PutStr("thread.name", o.Thread)
	}
	if o.ProfileID != ([16]byte{}) {
		a.PutStr("profile_id", hex.EncodeToString(o.ProfileID[:]))
	}
	putSnapshot(a, o.Snapshot)
	for _, f := range []struct {
		key   string
		value int64
	}{
		{"heapwire.oom.requested", o.Requested}, {"heapwire.oom.free", o.Free}, {"heapwire.oom.total", o.Total}, {"heapwire.oom.limit", o.Limit},
		{"heapwire.oom.live", o.Live}, {"heapwire.oom.live_objects", o.LiveObjects}, {"heapwire.oom.reserved", o.Reserved},
		{"heapwire.oom.inactive", o.Inactive}, {"heapwire.oom.largest_hole", o.LargestHole}, {"heapwire.oom.live_at_dump", o.LiveAtDump},
		{"heapwire.oom.count", o.Count}, {"heapwire.oom.skipped", o.Skipped},
	} {
		if f.value >= 0 {
			a.PutInt(f.key, f.value)
		}
	}
	a.PutBool("heapwire.oom.after_unwinding", o.AfterUnwinding)
	if o.Missing != "" {
		a.PutStr("heapwire.snapshot.error", o.Missing)
	}
	putTop(a, o.Top)
}

func describeOOM(ev *sink.Event) string {
	o := ev.OOM
	var b strings.Builder
	fmt.Fprintf(&b, "process %d of %s ran out of memory on %s", ev.Identity.PID, ev.Identity.ServiceName, o.Device)
	figure := func(format string, v int64) {
		if v >= 0 {
			fmt.Fprintf(&b, format, v)
		}
	}
	if o.Requested > 0 {
		fmt.Fprintf(&b, ": %d bytes asked for", o.Requested)
		if len(o.Stack) > 0 {
			fmt.Fprintf(&b, " by %s", placeOf(o.Stack[0]))
		}
	}
	figure("; %d live", o.Live)
	figure(", %d reserved", o.Reserved)
	figure(", %d inactive", o.Inactive)
	figure(", %d free on the device", o.Free)
	if o.Limit >= 0 {
		figure(", %d allowed", o.Limit)
	} else {
		figure(" of %d", o.Total)
	}
	if len(o.Top) > 0 && len(o.Top[0].Frames) > 0 {
		fmt.Fprintf(&b, "; most, %d bytes, from %s", o.Top[0].Bytes, placeOf(o.Top[0].Frames[0]))
	}
	if o.AfterUnwinding {
		b.WriteString("; dump taken after unwinding")
		figure(", when %d were left", o.LiveAtDump)
	}
	if o.Missing != "" {
		fmt.Fprintf(&b, "; there is no snapshot of it: %s", o.Missing)
	}
	return b.String()
}

// placeOf is a frame as a sentence has it: the function, and the file's name in parentheses.
func placeOf(frame string) string {
	function, place, found := strings.Cut(frame, " ")
	if found {
		place = " (" + filepath.Base(place) + ")"
	}
	return function + place
}

func putWindow(r plog.LogRecord, ev *sink.Event) {
	w := ev.Window
	r.SetEventName(EventTruncated)
	r.SetSeverityNumber(plog.SeverityNumberInfo)
	r.SetSeverityText("INFO")
	text := fmt.Sprintf("the history of %s in a snapshot of process %d of %s begins after the first allocation", w.Device, ev.Identity.PID, ev.Identity.ServiceName)
	if w.Overflowed {
		r.SetSeverityNumber(plog.SeverityNumberWarn)
		r.SetSeverityText("WARN")
		text = fmt.Sprintf("the history of %s in a snapshot of process %d of %s has lost its oldest events", w.Device, ev.Identity.PID, ev.Identity.ServiceName)
		if w.MaxEntries > 0 {
			text += fmt.Sprintf(": it keeps %d", w.MaxEntries)
		}
	}
	if w.StaleFrees > 0 {
		text += fmt.Sprintf("; %d blocks of %d bytes were allocated before it and freed in it", w.StaleFrees, w.StaleBytes)
	}
	if !w.Time.IsZero() {
		r.SetTimestamp(pcommon.NewTimestampFromTime(w.Time))
	}
	r.Body().SetStr(text)
	a := r.Attributes()
	putSnapshot(a, w.Snapshot)
	a.PutInt("heapwire.window.events", w.Events)
	a.PutInt("heapwire.window.stale_frees", w.StaleFrees)
	a.PutInt("heapwire.window.stale_bytes", w.StaleBytes)
	a.PutBool("heapwire.window.overflowed", w.Overflowed)
	if w.MaxEntries > 0 {
		a.PutInt("heapwire.window.max_entries", w.MaxEntries)
	}
}
