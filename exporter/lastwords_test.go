// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/heapwire/heapwire/exporter/sink"
)

// mourners is an event sink that remembers.
type mourners struct {
	name   string
	export func(attempt int) error

	mu       sync.Mutex
	attempts int
	events   []*sink.Event
}

func (m *mourners) Name() string                { return m.name }
func (m *mourners) Close(context.Context) error { return nil }
func (m *mourners) ExportEvent(_ context.Context, ev *sink.Event) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.attempts++
	if m.export != nil {
		if err := m.export(m.attempts); err != nil {
			return err
		}
	}
	m.events = append(m.events, ev)
	return nil
}

func (m *mourners) got() []*sink.Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.events)
}

func listening(m *mourners) func(*Config) {
	return func(c *Config) { c.Events = []sink.EventSink{m} }
}

func TestAProcessThatDiedWithoutItsLastDumpIsTold(t *testing.T) {
	p := newPlace(t)
	folder := p.folder(4194301, 1, "000001.interval.heap", "a=1", "000002.pressure.heap", "small=5 large=70 middle=10 tiny=1")
	m, logs := &memory{name: "m"}, &mourners{name: "logs"}
	pipeline := p.start(listening(logs), m)
	p.finish(pipeline)
	events := logs.got()
	if len(events) != 1 || len(m.got()) != 2 {
		t.Fatalf("%d events, %v\n%s", len(events), m.got(), p.logs.String())
	}
	ev := events[0]
	if ev.Process != folder || ev.Signal != 0 || !ev.Ended.IsZero() || ev.Observed.IsZero() || ev.OOMKills != -1 || ev.Identity.ServiceName != "trainer" {
		t.Errorf("event %+v", ev)
	}
	last := ev.Last
	if last == nil || last.Seq != 2 || last.Reason != "pressure" || last.Live != 86 || last.ProfileID != m.items[1].ProfileID {
		t.Fatalf("last dump %+v", last)
	}
	var top []string
	for _, h := range last.Top {
		top = append(top, fmt.Sprint(h.Bytes, h.Frames))
	}
	want := []string{"70 [large /app.py:5 main /app.py:99]", "10 [middle /app.py:6 main /app.py:99]", "5 [small /app.py:5 main /app.py:99]"}
	if !slices.Equal(top, want) {
		t.Errorf("top %q, want %q", top, want)
	}
	if s := pipeline.Stats(); s.Killed != 1 || pipeline.sinkStats("logs").Events != 1 || s.Pending != 0 {
		t.Errorf("stats %+v", s)
	}
	if _, err := os.Stat(filepath.Join(p.path, folder)); !os.IsNotExist(err) {
		t.Errorf("left: %v", p.files(folder))
	}
}

func TestWhatEndedAsItShouldIsNotMourned(t *testing.T) {
	for name, files := range map[string][]string{
		"with its exit dump":                  {"000001.interval.heap", "a=1", "000002.exit.heap", "a=2"},
		"with an unreadable exit dump":        {"000001.interval.heap", "a=1", "000002.exit.heap", "bad"},
		"without any dump":                    nil,
		"told by an earlier reader":           {"000001.interval.heap", "a=1", ".delivery", "s death logs .\n"},
		"exit dump seen by an earlier reader": {".delivery", `n {"exited":true,"last":{"seq":2,"reason":"exit"}} .` + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.folder(4194301, 1, files...)
			logs := &mourners{name: "logs"}
			p.finish(p.start(listening(logs), &memory{name: "m"}))
			if events := logs.got(); len(events) != 0 {
				t.Errorf("event %+v", events[0])
			}
		})
	}
}

func TestTheParentKnowsTheSignal(t *testing.T) {
	for _, c := range []struct {
		signal int
		want   int
	}{{9, 1}, {0, 0}} {
		p := newPlace(t)
		folder := p.folder(4194301, 1, "000001.interval.heap", "a=1")
		m, logs := &memory{name: "m"}, &mourners{name: "logs"}
		pipeline := p.pipeline(listening(logs), m)
		pipeline.Expect(4194301, 1)
		pipeline.Start()
		p.until("the dump is delivered", func() bool { return len(m.got()) == 1 })
		pipeline.look(t.Context(), true)
		if n := len(logs.got()); n != 0 {
			t.Fatal("told before the parent could say how it ended")
		}
		pipeline.Ended(4194301, c.signal)
		p.finish(pipeline)
		if events := logs.got(); len(events) != c.want || c.want == 1 && (events[0].Signal != 9 || events[0].Ended.IsZero()) {
			t.Errorf("signal %d: %d events", c.signal, len(events))
		}
		if _, err := os.Stat(filepath.Join(p.path, folder)); !os.IsNotExist(err) {
			t.Errorf("left: %v", p.files(folder))
		}
	}
}

// Its pid is in use again: what the parent says is about the other.
func TestTheParentsWordIsAboutOneProcess(t *testing.T) {
	p := newPlace(t)
	p.folder(4194301, 1, "000001.interval.heap", "a=1")
	logs := &mourners{name: "logs"}
	pipeline := p.pipeline(listening(logs), &memory{name: "m"})
	pipeline.Expect(4194301, 2)
	pipeline.Ended(4194301, 11)
	pipeline.Start()
	p.finish(pipeline)
	if events := logs.got(); len(events) != 1 || events[0].Signal != 0 {
		t.Errorf("events %+v", events)
	}
}

func TestLastWordsOutliveTheirReader(t *testing.T) {
	p := newPlace(t)
	folder := p.folder(4194301, 1, "000001.interval.heap", "leak=700")
	m := &memory{name: "m"}
	down := &mourners{name: "logs", export: func(int) error { return errors.New("connection refused") }}
	first := p.start(listening(down), m)
	p.until("the dump is delivered and the event was tried", func() bool {
		down.mu.Lock()
		defer down.mu.Unlock()
		return len(m.got()) == 1 && down.attempts > 0 && len(p.files(folder)) == 0
	})
	p.halt(first)

	logs := &mourners{name: "logs"}
	p.finish(p.start(listening(logs), &memory{name: "m"}))
	events := logs.got()
	if len(events) != 1 || events[0].Last == nil || events[0].Last.ProfileID != m.items[0].ProfileID || events[0].Last.Live != 700 || len(events[0].Last.Top) != 1 {
		t.Fatalf("events %+v", events)
	}
	if _, err := os.Stat(filepath.Join(p.path, folder)); !os.IsNotExist(err) {
		t.Errorf("left: %v", p.files(folder))
	}
}

// Where exit dumps are off, every end looks like a kill but to the parent.
func TestWithoutExitDumpsOnlyTheParentKnows(t *testing.T) {
	for _, c := range []struct {
		what           string
		parent, signal int
		exitDump       bool
		want           int
	}{
		{"nobody knows", 0, 0, false, 0},
		{"the parent saw a signal", 1, 9, false, 1},
		{"the parent saw it leave", 1, 0, false, 0},
		{"exit dumps are on", 0, 0, true, 1},
	} {
		t.Run(c.what, func(t *testing.T) {
			p := newPlace(t)
			identity := fmt.Sprintf(`{"schema":1,"host":%q,"pid":4194301,"start_ticks":1,"exit_dump":%v}`, p.host, c.exitDump)
			p.folder(4194301, 1, "process.json", identity, "000001.interval.heap", "a=1")
			logs := &mourners{name: "logs"}
			pipeline := p.pipeline(listening(logs), &memory{name: "m"})
			if c.parent == 1 {
				pipeline.Expect(4194301, 1)
				pipeline.Ended(4194301, c.signal)
			}
			pipeline.Start()
			p.finish(pipeline)
			if events := logs.got(); len(events) != c.want || c.want == 1 && events[0].Signal != c.signal {
				t.Errorf("events %+v", events)
			}
		})
	}
}
