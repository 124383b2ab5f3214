// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heapwire/heapwire/exporter/sink"
	"github.com/heapwire/heapwire/exporter/spool"
)

// halt ends a pipeline at once, as if there were no time to deliver anything.
func (p *place) halt(pipeline *Pipeline) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := pipeline.Shutdown(ctx); err != nil && !errors.Is(err, ErrUndelivered) {
		p.t.Fatalf("shutdown: %v", err)
	}
}

func refuse(context.Context, int, *sink.Item) error { return errors.New("connection refused") }

func TestASinkGetsNothingTwiceAcrossReaders(t *testing.T) {
	p := newPlace(t)
	folder := p.dead(4194301)
	for seq := 1; seq <= 3; seq++ {
		p.dump(folder, seq, "interval", "a=1")
	}
	quick, down := &memory{name: "quick"}, &memory{name: "down", export: refuse}
	first := p.start(nil, quick, down)
	p.until("the quick sink has all", func() bool { return len(quick.got()) == 3 && down.tries() > 0 })
	p.until("that is noted", func() bool {
		text, _ := os.ReadFile(filepath.Join(p.path, folder, ".delivery"))
		return strings.Count(string(text), " quick .\n") == 3
	})
	p.halt(first)

	again, up := &memory{name: "quick"}, &memory{name: "down"}
	p.finish(p.start(nil, again, up))
	if len(again.got()) != 0 || len(up.got()) != 3 {
		t.Errorf("the next reader's sinks got %v and %v", again.got(), up.got())
	}
	if _, err := os.Stat(filepath.Join(p.path, folder)); !os.IsNotExist(err) {
		t.Errorf("the folder is left: %v", p.files(folder))
	}
}

func TestWhatEverySinkHasIsRemovedByTheNextReader(t *testing.T) {
	p := newPlace(t)
	folder := p.folder(4194301, 1, "000001.exit.heap", "a=1", ".delivery", "s 000001.exit.heap m .\n")
	m := &memory{name: "m"}
	pipeline := p.start(nil, m)
	p.finish(pipeline)
	if len(m.got()) != 0 || pipeline.Stats().Dumps != 0 {
		t.Errorf("delivered %v, %+v", m.got(), pipeline.Stats())
	}
	if _, err := os.Stat(filepath.Join(p.path, folder)); !os.IsNotExist(err) {
		t.Errorf("left: %v", p.files(folder))
	}
}

type addressed struct {
	*memory
	address string
}

func (a addressed) Destination() string { return a.address }

func TestAnotherDestinationHasNotAccepted(t *testing.T) {
	p := newPlace(t)
	folder := p.dead(4194301)
	p.dump(folder, 1, "exit", "a=1")
	here, down := addressed{&memory{name: "m"}, "http://user:secret@a"}, &memory{name: "down", export: refuse}
	first := p.start(nil, here, down)
	p.until("it is noted", func() bool {
		text, _ := os.ReadFile(filepath.Join(p.path, folder, ".delivery"))
		if strings.Contains(string(text), "secret") {
			t.Fatal("the address is told")
		}
		return strings.Contains(string(text), " m:")
	})
	p.halt(first)
	same, other := addressed{&memory{name: "m"}, "http://user:secret@a"}, addressed{&memory{name: "m"}, "http://b"}
	p.finish(p.start(nil, same, other))
	if len(same.got()) != 0 || len(other.got()) != 1 {
		t.Errorf("got %v and %v", same.got(), other.got())
	}
}

func TestAReadOnlySpoolIsDeliveredOnceByAReader(t *testing.T) {
	p := newPlace(t)
	// What is kept has no place: a file has its folder's name.
	folder := p.folder(4194301, 1, "000001.exit.heap", "a=1", "delivered", "")
	// As if the folder could not be written to, which root always can.
	if err := os.Mkdir(filepath.Join(p.path, folder, ".delivery"), 0o700); err != nil {
		t.Fatal(err)
	}
	m := &memory{name: "m"}
	var looks int
	pipeline := p.start(func(c *Config) {
		c.Keep = true
		c.now = func() time.Time { looks++; return time.Now() }
	}, m)
	p.until("it was looked at some more", func() bool {
		pipeline.scanning.Lock()
		defer pipeline.scanning.Unlock()
		return looks > 5 && len(m.got()) > 0
	})
	if n := len(m.got()); n != 1 {
		t.Errorf("delivered %d times", n)
	}
	p.until("the failure is counted", func() bool { return pipeline.Stats().AcknowledgeFailed == 1 })
}

func TestTheSpoolIsKeptWithinItsLimits(t *testing.T) {
	for _, c := range []struct {
		name   string
		limits spool.Limits
		want   []string
		why    string
		count  int
	}{
		{"files", spool.Limits{Files: 3}, []string{"000001.start.heap", "000004.pressure.heap", "000006.interval.heap"}, "files", 2},
		{"bytes", spool.Limits{Bytes: 9}, []string{"000001.start.heap", "000004.pressure.heap", "000006.interval.heap"}, "bytes", 2},
		{"age", spool.Limits{Age: time.Hour}, []string{"000002.interval.heap", "000003.interval.heap", "000004.pressure.heap", "000006.interval.heap"}, "age", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlace(t)
			folder := p.folder(4194301, 1, "000001.start.heap", "a=1", "000002.interval.heap", "a=1", "000003.interval.heap", "a=1",
				"000004.pressure.heap", "a=1", "000005.interval.heap", "bad", "000006.interval.heap", "a=1")
			old := time.Now().Add(-2 * time.Hour)
			if err := os.Chtimes(filepath.Join(p.path, folder, "000001.start.heap"), old, old); err != nil {
				t.Fatal(err)
			}
			release := make(chan struct{})
			m := &memory{name: "m", export: func(ctx context.Context, _ int, _ *sink.Item) error {
				select {
				case <-release:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}}
			first := p.start(nil, m) // sets the unreadable one aside
			p.until("the unreadable one is aside", func() bool { return slices.Contains(p.files(folder), "000005.interval.heap.rejected.txt") })
			p.halt(first)
			pipeline := p.start(func(cfg *Config) { cfg.Limits = c.limits }, m)
			p.until("what is too much has gone", func() bool { return pipeline.Stats().Dropped[c.why] == c.count })
			close(release)
			p.finish(pipeline)
			var got []string
			for _, name := range m.got() {
				got = append(got, strings.TrimPrefix(name, folder+"/")+".heap")
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("delivered %v, want %v", got, c.want)
			}
			if c.name != "age" && slices.ContainsFunc(p.files(folder), func(f string) bool { return strings.Contains(f, ".rejected") }) {
				t.Errorf("what was set aside is kept longer than what waits: %v", p.files(folder))
			}
			if n := strings.Count(p.logs.String(), "is above its limit of "+c.why); n != 1 {
				t.Errorf("told %d times:\n%s", n, p.logs.String())
			}
		})
	}
}

func TestADumpThatAlwaysFailsDoesNotHoldTheOthersForEver(t *testing.T) {
	p := newPlace(t)
	folder := p.dead(4194301)
	for seq := 1; seq <= 6; seq++ {
		p.dump(folder, seq, "interval", "a=1")
	}
	m := &memory{name: "m", export: func(_ context.Context, _ int, it *sink.Item) error {
		if it.Seq == 1 {
			return errors.New("timeout")
		}
		return nil
	}}
	pipeline := p.start(func(c *Config) { c.Retry.Patience = 10 * time.Millisecond }, m)
	p.until("the folder is gone", func() bool { _, err := os.Stat(filepath.Join(p.path, folder)); return os.IsNotExist(err) })
	if s := pipeline.sinkStats("m"); s.Accepted != 5 || s.GivenUp != 1 || s.Refused != 0 {
		t.Errorf("stats %+v", s)
	}
	var want []string
	for seq := 2; seq <= 6; seq++ {
		want = append(want, fmt.Sprintf("%s/%06d.interval", folder, seq))
	}
	if got := m.got(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestADeadEndpointIsAskedSeldom(t *testing.T) {
	p := newPlace(t)
	folder := p.dead(4194301)
	for seq := 1; seq <= 100; seq++ {
		p.dump(folder, seq, "interval", "a=1")
	}
	m := &memory{name: "m", export: refuse}
	began := time.Now()
	pipeline := p.start(func(c *Config) {
		c.Retry = Retry{Initial: time.Millisecond, Max: 40 * time.Millisecond, Patience: time.Nanosecond}
	}, m)
	p.until("it was asked for half a second", func() bool { return time.Since(began) > 500*time.Millisecond })
	// About 12 to rise to the longest wait of 40 ms, then one in 20 ms at most: half of it at least by the jitter.
	n, took := m.tries(), time.Since(began)
	if n == 0 || n > 35+int(took/(20*time.Millisecond)) {
		t.Errorf("%d attempts in %v", n, took)
	}
	if s := pipeline.sinkStats("m"); !s.Down || s.GivenUp != 0 {
		t.Errorf("stats %+v", s)
	}
}
