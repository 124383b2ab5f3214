// SPDX-License-Identifier: Apache-2.0

package torchmem_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/heapwire/heapwire/convert/pickle"
	"github.com/heapwire/heapwire/convert/torchmem"
	"github.com/heapwire/heapwire/convert/torchmem/snapgen"
)

// pairs is a dict with its order.
type pairs []any

type tuple [2]int

func dictOf(kv ...any) pairs { return kv }

// pickled is protocol 2 without a memo.
func pickled(v any) []byte {
	return append(appendValue([]byte{0x80, 2}, v), '.')
}

func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, 'N')
	case int:
		return appendValue(b, int64(v))
	case int64:
		if v >= math.MinInt32 && v <= math.MaxInt32 {
			return binary.LittleEndian.AppendUint32(append(b, 'J'), uint32(v))
		}
		return binary.LittleEndian.AppendUint64(append(b, 0x8a, 8), uint64(v))
	case uint64:
		return append(binary.LittleEndian.AppendUint64(append(b, 0x8a, 9), v), 0)
	case float64:
		return binary.BigEndian.AppendUint64(append(b, 'G'), math.Float64bits(v))
	case bool:
		if v {
			return append(b, 0x88)
		}
		return append(b, 0x89)
	case string:
		return append(binary.LittleEndian.AppendUint32(append(b, 'X'), uint32(len(v))), v...)
	case []any:
		b = append(b, ']', '(')
		for _, item := range v {
			b = appendValue(b, item)
		}
		return append(b, 'e')
	case tuple:
		return append(appendValue(appendValue(b, v[0]), v[1]), 0x86)
	case pairs:
		b = append(b, '}', '(')
		for _, item := range v {
			b = appendValue(b, item)
		}
		return append(b, 'u')
	case map[string]any:
		var p pairs
		for k := range v {
			p = append(p, k)
		}
		slices.SortFunc(p, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
		var kv pairs
		for _, k := range p {
			kv = append(kv, k, v[k.(string)])
		}
		return appendValue(b, kv)
	}
	panic(fmt.Sprintf("no pickle of %T", v))
}

func event(action string, addr any, size any) pairs {
	return dictOf("action", action, "addr", addr, "size", size, "stream", 0, "frames", []any{})
}

func segmentOf(addr any, size any, blocks ...any) pairs {
	return dictOf("device", 0, "address", addr, "total_size", size, "stream", 0, "segment_type", "large", "blocks", blocks)
}

func blockOf(addr any, size, requested any, state string) pairs {
	return dictOf("address", addr, "size", size, "requested_size", requested, "state", state, "frames", []any{})
}

func snapshotOf(segments, events []any) []byte {
	return pickled(dictOf("segments", segments, "device_traces", []any{events}))
}

func TestOddSnapshotsAreReadWithAWarning(t *testing.T) {
	f := func(data []byte, warning string, look func(d *torchmem.Device) bool) {
		t.Helper()
		s, err := torchmem.Read(bytes.NewReader(data), torchmem.Options{Name: "odd.pickle"})
		if err != nil {
			t.Error(err)
			return
		}
		w := strings.Join(s.Report.Warnings(), "\n")
		if warning == "" && w != "" || !strings.Contains(w, warning) {
			t.Errorf("warnings %q, want %q", w, warning)
		}
		check(t, s)
		if len(s.Devices) > 0 && look != nil && !look(s.Devices[0]) {
			t.Errorf("device %+v", s.Devices[0])
		}
	}
	one := []any{segmentOf(4096, 1024, blockOf(4096, 1024, 1000, "active_allocated"))}
	f(snapshotOf(one, nil), "", func(d *torchmem.Device) bool { return d.Requested == 1000 && d.Reserved == 1024 })
	// The state has two names: the documentation's and the code's.
	for _, state := range []string{"active_pending_free", "active_awaiting_free"} {
		f(snapshotOf([]any{segmentOf(4096, 1024, blockOf(4096, 1024, 1000, state))}, nil), "", func(d *torchmem.Device) bool { return d.Pending == 1000 && d.Requested == 1000 })
	}
	// Frees of addresses that nobody allocated are ordinary: the window begins late.
	f(snapshotOf(one, []any{event("free_completed", 99, 500), event("free_completed", 99, 500)}), "",
		func(d *torchmem.Device) bool { return d.StaleFrees == 2 && d.Baseline == 2000 && d.Peak == 2000 })
	f(snapshotOf(one, []any{event("free", 99, 500)}), "", func(d *torchmem.Device) bool { return d.StaleFrees == 1 })
	// Negative sizes, and sizes that no device has.
	f(snapshotOf(one, []any{event("alloc", 1, -5), event("alloc", 2, 7)}), "1 sizes cannot be", func(d *torchmem.Device) bool { return d.AllocBytes == 7 })
	f(snapshotOf(one, []any{event("alloc", 1, uint64(1)<<63)}), "1 sizes cannot be", nil)
	f(snapshotOf(one, []any{event("segment_alloc", 1, int64(1)<<60)}), "1 sizes cannot be", nil)
	f(snapshotOf([]any{segmentOf(4096, -1)}, nil), "1 segments were skipped", nil)
	f(snapshotOf([]any{segmentOf(4096, 512, blockOf(4096, -512, 1, "active_allocated"))}, nil), "1 sizes cannot be", nil)
	f(snapshotOf([]any{dictOf("device", -3, "address", 1, "total_size", 5, "blocks", []any{})}, nil), "1 segments were skipped", nil)
	f(snapshotOf([]any{dictOf("device", 1<<40, "address", 1, "total_size", 5, "blocks", []any{})}, nil), "1 segments were skipped", nil)
	// Addresses: negative from the C++ pickler, nine bytes above 2^63, and the same block by both.
	f(snapshotOf([]any{segmentOf(uint64(0xffff800000000000), 1024, blockOf(uint64(0xffff800000000000), 1024, 1000, "active_allocated"))},
		[]any{event("alloc", -0x800000000000, 1000)}), "", func(d *torchmem.Device) bool { return d.SurvivorBytes == 1000 && d.Baseline == 0 })
	// Overlaps.
	f(snapshotOf([]any{segmentOf(4096, 1024, blockOf(4096, 1024, 1, "inactive")), segmentOf(4608, 1024, blockOf(4608, 1024, 1, "inactive"))}, nil), "1 segments overlap", nil)
	f(snapshotOf([]any{segmentOf(4096, 1024, blockOf(4096, 512, 1, "inactive"), blockOf(4300, 512, 1, "inactive"))}, nil), "1 blocks overlap", nil)
	f(snapshotOf([]any{segmentOf(4096, 2048, blockOf(4096, 512, 1, "inactive"))}, nil), "1 segments are not the sum", nil)
	f(snapshotOf(one, []any{event("alloc", 4096, 1000), event("alloc", 4096, 1000)}), "1 allocations of an address that was in use", nil)
	f(snapshotOf(nil, []any{event("alloc", 4096, 1000)}), "", func(d *torchmem.Device) bool { return d.Reserved == 0 && d.SurvivorBytes == 1000 })
	// Types that make no sense.
	f(snapshotOf(one, []any{event("alloc", "here", "much")}), "2 values have a type", nil)
	f(snapshotOf(one, []any{dictOf("action", 7, "addr", 1, "size", 1)}), "1 values have a type", nil)
	f(snapshotOf(one, []any{dictOf("action", "alloc", "addr", 1, "size", 1, 5, 6)}), "1 dict keys are no strings", nil)
	f(snapshotOf([]any{segmentOf(4096, 1024, blockOf(4096, 1024, 1, "sleeping"))}, nil), `unknown state of a block "sleeping"`, nil)
	f(snapshotOf([]any{dictOf("action", "alloc", "addr", 1, "size", 1)}, nil), "1 events belong to no device", nil)
	f(pickled(dictOf("segments", []any{}, "device_traces", []any{}, "new_in_2027", 1)), `unknown key of the snapshot "new_in_2027"`, nil)
}

func TestSnapshotWithoutDevices(t *testing.T) {
	s := read(t, pickled(dictOf("segments", []any{}, "device_traces", []any{})), torchmem.Options{})
	if len(s.Devices) != 0 || len(s.Report.Warnings()) != 0 || s.DefaultView("") != "live" {
		t.Errorf("devices %v, warnings %q", s.Devices, s.Report.Warnings())
	}
	check(t, s)
	if _, err := s.View("live", "cuda:0"); err == nil {
		t.Error("a device that is not there")
	}
}

func TestOtherInputsAreRefused(t *testing.T) {
	f := func(data []byte, want error, text string) {
		t.Helper()
		s, err := torchmem.Read(bytes.NewReader(data), torchmem.Options{Name: "other.pickle"})
		if !errors.Is(err, want) || s != nil || !strings.Contains(fmt.Sprint(err), "other.pickle") || !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("got %v, want %v with %q", err, want, text)
		}
	}
	f(pickled(dictOf("weights", []any{1, 2, 3})), torchmem.ErrNotSnapshot, "_dump_snapshot")
	f(pickled([]any{1, 2, 3}), torchmem.ErrNotSnapshot, "")
	f(pickled([]any{}), torchmem.ErrNotSnapshot, "")
	f(pickled("segments"), torchmem.ErrNotSnapshot, "")
	f(pickled(7), torchmem.ErrNotSnapshot, "")
	f(nil, pickle.ErrTruncated, "empty")
	f([]byte("heap_v2/524288\n"), pickle.ErrNotPickle, "byte 0")
	f([]byte("PK\x03\x04"), pickle.ErrNotPickle, "byte 0")
	f([]byte("\x80\x04\x8c\x02os\x8c\x06system\x93."), pickle.ErrRefused, "byte 14: opcode STACK_GLOBAL")
	f([]byte("\x80\x02cos\nsystem\n(S'id'\ntR."), pickle.ErrRefused, "byte 2: opcode GLOBAL")
}

// Whatever a file claims, memory stays within what it is worth.
func TestHostileInputCostsLittle(t *testing.T) {
	prefix := []byte{0x80, 4, '}', 0x94, '(', 0x8c, 8, 's', 'e', 'g', 'm', 'e', 'n', 't', 's', 0x94}
	claim := func(op byte, length uint64) []byte {
		return append(binary.LittleEndian.AppendUint64(append(bytes.Clone(prefix), op), length), make([]byte, 100)...)
	}
	deep := append(bytes.Clone(prefix), bytes.Repeat([]byte{']'}, 2_000_000)...)
	marks := append(bytes.Clone(prefix), bytes.Repeat([]byte{'('}, 2_000_000)...)
	nested := append(append(bytes.Clone(prefix), bytes.Repeat([]byte("](]("), 1_000_000)...), '.')
	memo := append(bytes.Clone(prefix), bytes.Repeat([]byte{0x94}, 30_000_000)...)
	lists := append(bytes.Clone(prefix), bytes.Repeat([]byte{']', 0x94, '0'}, 10)...)
	integers := append(bytes.Clone(prefix), ']', 0x94, '(')
	for range 900_000 {
		integers = append(integers, 'K', 1, 0x94)
	}
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"10 GB string":          {claim(0x8d, 10<<30), pickle.ErrLimit},
		"2^64 string":           {claim(0x8d, 1<<64-1), pickle.ErrLimit},
		"4 GB string":           {claim('X', 1<<32-1), pickle.ErrLimit},
		"4 GB integer":          {claim(0x8b, 1<<32-1), pickle.ErrLimit},
		"10 GB frame":           {claim(0x95, 10<<30), pickle.ErrRefused}, // the frame's length says nothing; zeros follow
		"a million lists":       {deep, pickle.ErrLimit},
		"a million marks":       {marks, pickle.ErrLimit},
		"a million open lists":  {nested, pickle.ErrLimit},
		"a memo of one byte":    {memo, pickle.ErrLimit},
		"memo slot 4294967295":  {append(bytes.Clone(prefix), ']', 'r', 0xff, 0xff, 0xff, 0xff), pickle.ErrMalformed},
		"POP":                   {lists, pickle.ErrRefused},
		"numbers in the memo":   {integers, pickle.ErrLimit},
		"a list that is itself": {append(bytes.Clone(prefix), ']', 0x94, 'h', 2, 'a', 'u', '.'), pickle.ErrMalformed},
		"an open list":          {append(bytes.Clone(prefix), ']', 0x94, '(', 'h', 2, 'e', 'u', '.'), pickle.ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			s, err := torchmem.Read(bytes.NewReader(c.data), torchmem.Options{})
			runtime.ReadMemStats(&after)
			if !errors.Is(err, c.want) || s != nil {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if err != nil && !strings.Contains(err.Error(), "byte ") {
				t.Errorf("%v does not say where", err)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 64<<20 {
				t.Errorf("%d bytes were allocated for an input of %d", got, len(c.data))
			}
		})
	}
}

func TestLimitsOfWhatIsDistinct(t *testing.T) {
	g, data := generate(t, snapgen.Options{Stacks: 400, Steps: 20})
	s := read(t, data, torchmem.Options{MaxStacks: 50, AllFrames: true})
	if s.Report.StacksLeftOut == 0 || !strings.Contains(strings.Join(s.Report.Warnings(), "\n"), torchmem.StackLeftOut) {
		t.Errorf("warnings %q", s.Report.Warnings())
	}
	check(t, s)
	if s.Devices[0].AllocBytes != g.Truth().AllocBytes {
		t.Errorf("%d bytes allocated, want %d", s.Devices[0].AllocBytes, g.Truth().AllocBytes)
	}
	s = read(t, data, torchmem.Options{Limits: pickle.Limits{Texts: 80}})
	if s.Report.TextsLeftOut == 0 {
		t.Errorf("warnings %q", s.Report.Warnings())
	}
	check(t, s)
	s = read(t, data, torchmem.Options{MaxLive: 5})
	if s.Report.AllocsLeftOut == 0 {
		t.Errorf("warnings %q", s.Report.Warnings())
	}
	check(t, s)
}
