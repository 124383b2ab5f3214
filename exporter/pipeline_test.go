// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert"
	"github.com/heapwire/heapwire/convert/stack"
	"github.com/heapwire/heapwire/exporter/sink"
	"github.com/heapwire/heapwire/exporter/spool"
	"github.com/heapwire/heapwire/internal/syncbuffer"
)

const patience = time.Minute

// a place is a spool that tests fill. A dump's text is "name=bytes ..." by stack, or "bad", or "fault".
type place struct {
	t    *testing.T
	path string
	host string
	logs syncbuffer.Buffer
}

func newPlace(t *testing.T) *place {
	t.Helper()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return &place{t: t, path: t.TempDir(), host: host}
}

// dead makes the folder of a process that has ended, living that of this one.
func (p *place) dead(pid int) string { return p.folder(pid, 1) }

func (p *place) living() string {
	p.t.Helper()
	start, err := spool.StartTicks(os.Getpid())
	if err != nil {
		p.t.Fatal(err)
	}
	return p.folder(os.Getpid(), start)
}

func (p *place) folder(pid int, start uint64, files ...string) string {
	p.t.Helper()
	safe := strings.Map(func(r rune) rune {
		if r == '-' {
			return '_'
		}
		return r
	}, p.host)
	name := fmt.Sprintf("%s-%d-%d", safe, pid, start)
	text, err := json.Marshal(sink.ProcessJSON{
		Schema: 1, Host: p.host, PID: pid, StartTicks: start, ServiceName: "trainer", Variables: map[string]string{"RANK": "3"},
	})
	// It comes into the spool whole: a reader may take the empty folder of a dead process away at once.
	making := filepath.Join(p.t.TempDir(), name)
	if err == nil {
		err = os.Mkdir(making, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(making, "process.json"), text, 0o600)
	}
	for i := 0; i+1 < len(files) && err == nil; i += 2 {
		err = os.WriteFile(filepath.Join(making, files[i]), []byte(files[i+1]), 0o600)
	}
	if err == nil {
		err = os.Rename(making, filepath.Join(p.path, name))
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return name
}

func (p *place) dump(folder string, seq int, reason, text string) string {
	p.t.Helper()
	name := fmt.Sprintf("%06d.%s.heap", seq, reason)
	making := filepath.Join(p.path, folder, fmt.Sprintf(".%06d.tmp", seq))
	err := os.WriteFile(making, []byte(text), 0o600)
	if err == nil {
		err = os.Rename(making, filepath.Join(p.path, folder, name))
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return name
}

// files lists what a process folder holds, but its identity and the readers' notes.
func (p *place) files(folder string) []string {
	entries, _ := os.ReadDir(filepath.Join(p.path, folder))
	var out []string
	for _, e := range entries {
		if e.Name() != "process.json" && e.Name() != ".delivery" {
			out = append(out, e.Name())
		}
	}
	return out
}

func (p *place) until(what string, done func() bool) {
	p.t.Helper()
	deadline := time.Now().Add(patience)
	for tick := time.NewTicker(2 * time.Millisecond); !done(); <-tick.C {
		if time.Now().After(deadline) {
			p.t.Fatalf("waited in vain until %s\n%s", what, p.logs.String())
		}
	}
}

func (p *place) start(change func(*Config), sinks ...sink.Sink) *Pipeline {
	p.t.Helper()
	pipeline := p.pipeline(change, sinks...)
	pipeline.Start()
	return pipeline
}

// pipeline is one that has not started yet.
func (p *place) pipeline(change func(*Config), sinks ...sink.Sink) *Pipeline {
	p.t.Helper()
	s, err := spool.Open(p.path, spool.Options{Poll: 20 * time.Millisecond})
	if err != nil {
		p.t.Fatal(err)
	}
	cfg := Config{
		Spool: s, Sinks: sinks, Convert: convertText, Retry: Retry{Initial: time.Millisecond, Max: 5 * time.Millisecond},
		Logger: slog.New(slog.NewTextHandler(&p.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&cfg)
	}
	pipeline, err := New(cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = pipeline.Shutdown(ctx)
		// Whoever was left behind may be writing into the folders still.
		p.until("all of it has ended", func() bool {
			pipeline.mu.Lock()
			defer pipeline.mu.Unlock()
			return len(pipeline.running()) == 0
		})
	})
	return pipeline
}

func (p *place) finish(pipeline *Pipeline) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := pipeline.Shutdown(ctx); err != nil {
		p.t.Fatalf("shutdown: %v\n%s", err, p.logs.String())
	}
}

func convertText(r io.Reader, name string) (*convert.Heap, error) {
	text, err := io.ReadAll(r)
	switch {
	case err != nil:
		return nil, err
	case string(text) == "fault":
		panic("out of range")
	case string(text) == "bad":
		return nil, errors.New(name + ": line 1 (byte 0): not a dump")
	}
	sums := map[string]int64{}
	for _, field := range strings.Fields(string(text)) {
		stack, value, _ := strings.Cut(field, "=")
		if sums[stack], err = strconv.ParseInt(value, 10, 64); err != nil {
			return nil, err
		}
	}
	h := &convert.Heap{Profile: profileOf(sums)}
	h.Meta.Interval = time.Second
	return h, nil
}

// profileOf makes a profile with a Python stack "main < name" for each sum.
func profileOf(sums map[string]int64) *profile.Profile {
	mapping := &profile.Mapping{ID: 1, File: stack.PythonMapping}
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "inuse_objects", Unit: "count"}, {Type: "inuse_space", Unit: "bytes"}},
		Mapping:    []*profile.Mapping{mapping},
	}
	location := func(name string, line int64) *profile.Location {
		f := &profile.Function{ID: uint64(len(p.Function) + 1), Name: name, Filename: "/app.py"}
		l := &profile.Location{ID: uint64(len(p.Location) + 1), Mapping: mapping, Line: []profile.Line{{Function: f, Line: line}}}
		p.Function, p.Location = append(p.Function, f), append(p.Location, l)
		return l
	}
	main := location("main", 99)
	for name, sum := range sums {
		p.Sample = append(p.Sample, &profile.Sample{Location: []*profile.Location{location(name, int64(len(name))), main}, Value: []int64{1, sum}})
	}
	return p
}

// memory is a sink that remembers, and does what export says before it accepts.
type memory struct {
	name   string
	export func(ctx context.Context, attempt int, it *sink.Item) error

	mu       sync.Mutex
	attempts int
	items    []*sink.Item
	times    []time.Time
	closed   int
}

func (m *memory) Name() string { return m.name }

func (m *memory) Export(ctx context.Context, it *sink.Item) error {
	m.mu.Lock()
	m.attempts++
	attempt := m.attempts
	m.times = append(m.times, time.Now())
	m.mu.Unlock()
	if m.export != nil {
		if err := m.export(ctx, attempt, it); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.items = append(m.items, it)
	return nil
}

func (m *memory) Close(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed++
	return nil
}

func (m *memory) got() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, it := range m.items {
		out = append(out, it.Process+"/"+it.Base)
	}
	return out
}

func (m *memory) tries() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.attempts
}

func (p *Pipeline) sinkStats(name string) SinkStats {
	for _, s := range p.Stats().Sinks {
		if s.Name == name {
			return s
		}
	}
	return SinkStats{}
}

func TestEveryDumpGoesToEverySinkAndLeavesTheSpool(t *testing.T) {
	p := newPlace(t)
	one := p.dead(4194301)
	p.dump(one, 1, "interval", "a=10")
	p.dump(one, 12, "exit", "a=20")
	a, b := &memory{name: "a"}, &memory{name: "b"}
	pipeline := p.start(nil, a, b)
	p.until("the folder of the dead process is gone", func() bool {
		_, err := os.Stat(filepath.Join(p.path, one))
		return os.IsNotExist(err)
	})
	// Folders, and dumps, that come later.
	two := p.living()
	p.dump(two, 1, "start", "a=30")
	p.until("the dump of the living process is gone", func() bool { return len(b.got()) == 3 && len(p.files(two)) == 0 })
	three := p.folder(4194302, 1, "000001.exit.heap", "a=40")
	p.finish(pipeline)
	want := []string{one + "/000001.interval", one + "/000012.exit", two + "/000001.start", three + "/000001.exit"}
	for _, m := range []*memory{a, b} {
		if got := m.got(); !slices.Equal(got, want) {
			t.Errorf("sink %s got %v, want %v", m.name, got, want)
		}
		if m.closed != 1 {
			t.Errorf("sink %s closed %d times", m.name, m.closed)
		}
	}
	it := a.items[1]
	if it.Identity.ServiceName != "trainer" || it.Identity.Rank != "3" || it.Seq != 12 || it.Reason != "exit" || it.Kind != "host" ||
		it.View != "live" || it.Duration != time.Second || it.Time.IsZero() || it.Profile == nil ||
		it.ProfileID != sink.ProfileID(p.host, 4194301, 1, 12, "host", "live") {
		t.Errorf("item %+v", it)
	}
	stats := pipeline.Stats()
	if stats.Dumps != 4 || stats.Converted != 4 || stats.Pending != 0 || stats.ConvertFailed != 0 || stats.Warnings != 0 {
		t.Errorf("stats %+v\n%s", stats, p.logs.String())
	}
	if s := pipeline.sinkStats("b"); s.Accepted != 4 || s.Bytes != 16 || s.Retries != 0 || s.GivenUp != 0 || s.LastError != nil {
		t.Errorf("stats of sink b: %+v", s)
	}
	var seen []string
	for _, proc := range pipeline.Processes() {
		seen = append(seen, fmt.Sprintf("%s %d %s %d %q", proc.Folder, proc.Dumps, proc.Reason, proc.Live, proc.Left))
	}
	if want := []string{one + ` 2 exit 20 ""`, two + ` 1 start 30 "still running"`, three + ` 1 exit 40 ""`}; !slices.Equal(seen, want) {
		t.Errorf("processes\n%q\nwant\n%q", seen, want)
	}
}

func TestADumpThatCannotBeReadIsSetAside(t *testing.T) {
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("keep %v", keep), func(t *testing.T) {
			p := newPlace(t)
			folder := p.dead(4194301)
			p.dump(folder, 1, "interval", "bad")
			p.dump(folder, 2, "interval", "fault")
			p.dump(folder, 3, "interval", "a=1")
			m := &memory{name: "m"}
			pipeline := p.start(func(c *Config) { c.Keep = keep }, m)
			p.until("the third is delivered", func() bool { return len(m.got()) == 1 })
			p.finish(pipeline)
			want := []string{"000001.interval.heap.rejected", "000001.interval.heap.rejected.txt", "000002.interval.heap.rejected", "000002.interval.heap.rejected.txt"}
			if keep {
				want = []string{"000001.interval.heap", "000002.interval.heap", "delivered"}
			}
			if got := p.files(folder); !slices.Equal(got, want) {
				t.Errorf("files %v, want %v", got, want)
			}
			if !keep {
				why, err := os.ReadFile(filepath.Join(p.path, folder, want[1]))
				if err != nil || !strings.Contains(string(why), "line 1 (byte 0): not a dump") {
					t.Errorf("reason %q, %v", why, err)
				}
			}
			stats := pipeline.Stats()
			if stats.Dumps != 3 || stats.ConvertFailed != 2 || stats.Converted != 1 || stats.Warnings != 2 || stats.Pending != 0 {
				t.Errorf("stats %+v\n%s", stats, p.logs.String())
			}
			if left := pipeline.Processes()[0].Left; left != "holds files that were kept" {
				t.Errorf("left: %q", left)
			}
		})
	}
}

func TestWhatFailsIsTriedAgain(t *testing.T) {
	p := newPlace(t)
	p.dump(p.dead(4194301), 1, "exit", "a=1")
	m := &memory{name: "m", export: func(_ context.Context, attempt int, _ *sink.Item) error {
		if attempt < 4 {
			return errors.New("connection refused")
		}
		return nil
	}}
	pipeline := p.start(nil, m)
	p.until("it is delivered", func() bool { return len(m.got()) == 1 })
	p.finish(pipeline)
	if s := pipeline.sinkStats("m"); s.Accepted != 1 || s.Retries != 3 || s.GivenUp != 0 || fmt.Sprint(s.LastError) != "connection refused" {
		t.Errorf("stats %+v", s)
	}
	if n := strings.Count(p.logs.String(), "level=WARN"); n != 1 {
		t.Errorf("the failure is told %d times:\n%s", n, p.logs.String())
	}
}

func TestWhatIsRefusedForGoodIsGivenUp(t *testing.T) {
	p := newPlace(t)
	folder := p.dead(4194301)
	for seq := 1; seq <= 3; seq++ {
		p.dump(folder, seq, "interval", "a=1")
	}
	refusing := &memory{name: "refusing", export: func(_ context.Context, attempt int, _ *sink.Item) error {
		if attempt == 2 {
			panic("nil map")
		}
		return sink.Permanent(errors.New("400 bad request"))
	}}
	other := &memory{name: "other"}
	pipeline := p.start(nil, refusing, other)
	p.until("the folder is gone", func() bool { _, err := os.Stat(filepath.Join(p.path, folder)); return os.IsNotExist(err) })
	p.finish(pipeline)
	if s := pipeline.sinkStats("refusing"); refusing.tries() != 3 || s.GivenUp != 3 || s.Accepted != 0 || s.Retries != 0 {
		t.Errorf("%d attempts, stats %+v", refusing.tries(), s)
	}
	if s := pipeline.sinkStats("other"); s.Accepted != 3 {
		t.Errorf("the other sink: %+v", s)
	}
	if n := strings.Count(p.logs.String(), "level=WARN"); n != 1 {
		t.Errorf("the refusal is told %d times:\n%s", n, p.logs.String())
	}
}

func TestRetryAfterIsHeeded(t *testing.T) {
	const delay = 150 * time.Millisecond
	p := newPlace(t)
	p.dump(p.dead(4194301), 1, "exit", "a=1")
	m := &memory{name: "m", export: func(_ context.Context, attempt int, _ *sink.Item) error {
		if attempt == 1 {
			return fmt.Errorf("sending: %w", &sink.RetryAfterError{Delay: delay, Err: errors.New("429")})
		}
		return nil
	}}
	p.start(nil, m)
	p.until("it is delivered", func() bool { return len(m.got()) == 1 })
	if waited := m.times[1].Sub(m.times[0]); waited < delay {
		t.Errorf("tried again after %v, want %v at least", waited, delay)
	}
}

func TestASlowSinkDoesNotHoldAnother(t *testing.T) {
	const dumps = 40
	p := newPlace(t)
	folder := p.dead(4194301)
	for seq := 1; seq <= dumps; seq++ {
		p.dump(folder, seq, "interval", "a=1")
	}
	release := make(chan struct{})
	slow := &memory{name: "slow", export: func(ctx context.Context, _ int, _ *sink.Item) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	quick := &memory{name: "quick"}
	pipeline := p.start(nil, slow, quick)
	p.until("the quick sink has all", func() bool { return len(quick.got()) == dumps })
	if n := len(p.files(folder)); n != dumps {
		t.Errorf("%d dumps in the spool, want all %d: the slow sink has none", n, dumps)
	}
	pipeline.converted.mu.Lock()
	if n := len(pipeline.converted.entries); n > 3 {
		t.Errorf("%d profiles are held for the slow sink", n)
	}
	pipeline.converted.mu.Unlock()
	close(release)
	p.until("the slow sink has all", func() bool { return len(slow.got()) == dumps })
	p.finish(pipeline)
	if !slices.Equal(slow.got(), quick.got()) {
		t.Errorf("slow got %v, quick got %v", slow.got(), quick.got())
	}
}

func TestASinkThatIsDownGivesUpWhatIsOverdue(t *testing.T) {
	p := newPlace(t)
	folder := p.dead(4194301)
	for seq := 1; seq <= 50; seq++ {
		p.dump(folder, seq, "interval", "a=1")
	}
	down := &memory{name: "down", export: func(context.Context, int, *sink.Item) error { return errors.New("connection refused") }}
	pipeline := p.start(func(c *Config) { c.Retry.MaxElapsed = 30 * time.Millisecond }, down)
	p.until("the folder is gone", func() bool { _, err := os.Stat(filepath.Join(p.path, folder)); return os.IsNotExist(err) })
	if s := pipeline.sinkStats("down"); s.GivenUp != 50 || s.Accepted != 0 {
		t.Errorf("stats %+v", s)
	}
	if n := down.tries(); n >= 50 {
		t.Errorf("%d attempts: what is overdue needs none of its own", n)
	}
	if n := strings.Count(p.logs.String(), "level=WARN"); n != 1 {
		t.Errorf("one outage is told %d times:\n%s", n, p.logs.String())
	}
}

func TestWhatCannotBeDeliveredStaysForTheNextReader(t *testing.T) {
	p := newPlace(t)
	folder := p.dead(4194301)
	p.dump(folder, 1, "interval", "a=1")
	p.dump(folder, 2, "exit", "a=1")
	var first *sink.Item
	down := &memory{name: "down", export: func(_ context.Context, attempt int, it *sink.Item) error {
		if attempt == 1 {
			first = it
		}
		return errors.New("connection refused")
	}}
	quick := &memory{name: "quick"}
	pipeline := p.start(nil, down, quick)
	p.until("the quick sink has both", func() bool { return len(quick.got()) == 2 && down.tries() > 0 })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	err := pipeline.Shutdown(ctx)
	if !errors.Is(err, ErrUndelivered) || !strings.Contains(err.Error(), "2 left in "+p.path) {
		t.Errorf("shutdown: %v", err)
	}
	if again := pipeline.Shutdown(context.Background()); !errors.Is(again, ErrUndelivered) {
		t.Errorf("shutdown again: %v", again)
	}
	if left := pipeline.Processes()[0].Left; left != "2 not delivered" {
		t.Errorf("left: %q", left)
	}
	if got := p.files(folder); !slices.Equal(got, []string{"000001.interval.heap", "000002.exit.heap"}) {
		t.Errorf("files %v", got)
	}
	next := &memory{name: "next"}
	p.finish(p.start(nil, next))
	if len(next.got()) != 2 || next.items[0].ProfileID != first.ProfileID {
		t.Errorf("the next reader got %v", next.got())
	}
}

func TestShutdownDoesNotSitOutALongWait(t *testing.T) {
	p := newPlace(t)
	p.dump(p.dead(4194301), 1, "exit", "a=1")
	m := &memory{name: "m", export: func(_ context.Context, attempt int, _ *sink.Item) error {
		if attempt == 1 {
			return &sink.RetryAfterError{Delay: time.Minute, Err: errors.New("503")}
		}
		return nil
	}}
	pipeline := p.start(nil, m)
	p.until("the first attempt has failed", func() bool { return pipeline.sinkStats("m").Retries == 1 })
	p.finish(pipeline)
	if got := m.got(); len(got) != 1 {
		t.Errorf("delivered %v", got)
	}
}

func TestASinkThatHangsDoesNotHangShutdown(t *testing.T) {
	p := newPlace(t)
	p.dump(p.dead(4194301), 1, "exit", "a=1")
	release := make(chan struct{})
	defer close(release)
	hanging := &memory{name: "hanging", export: func(context.Context, int, *sink.Item) error { <-release; return nil }}
	pipeline := p.start(nil, hanging)
	p.until("it hangs", func() bool { return hanging.tries() == 1 })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	ended := make(chan error)
	go func() { ended <- pipeline.Shutdown(ctx) }()
	select {
	case err := <-ended:
		if !errors.Is(err, ErrUndelivered) {
			t.Errorf("shutdown: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("shutdown hangs")
	}
}

func TestAnAttemptHasALimit(t *testing.T) {
	p := newPlace(t)
	p.dump(p.dead(4194301), 1, "exit", "a=1")
	m := &memory{name: "m", export: func(ctx context.Context, attempt int, _ *sink.Item) error {
		if attempt > 1 {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}}
	p.start(func(c *Config) { c.Retry.Attempt = 10 * time.Millisecond }, m)
	p.until("the second attempt succeeds", func() bool { return len(m.got()) == 1 })
}

func TestAFolderOfAnotherReaderIsLeftAlone(t *testing.T) {
	p := newPlace(t)
	taken, free := p.dead(4194301), p.dead(4194302)
	p.dump(taken, 1, "exit", "a=1")
	p.dump(free, 1, "exit", "a=1")
	other, err := spool.Open(p.path, spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	claim, err := other.Claim(taken)
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{name: "m"}
	pipeline := p.start(nil, m)
	p.until("the free one is delivered", func() bool { return len(m.got()) == 1 })
	if got := p.files(taken); len(got) != 1 || m.got()[0] != free+"/000001.exit" {
		t.Errorf("the other reader's folder has %v, delivered %v", got, m.got())
	}
	if err := claim.Release(); err != nil {
		t.Fatal(err)
	}
	p.until("the other is delivered too", func() bool { return len(m.got()) == 2 })
	p.finish(pipeline)
}

func TestAFaultyIdentityCostsNoDump(t *testing.T) {
	p := newPlace(t)
	folder := p.dead(4194301)
	path := filepath.Join(p.path, folder, "process.json")
	if err := os.WriteFile(path, []byte(`{"host": "`+p.host+`", "pid": "x", "start_ticks": 1, "service_name": "trainer"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p.dump(folder, 1, "exit", "a=1")
	m := &memory{name: "m"}
	pipeline := p.start(nil, m)
	p.until("it is delivered", func() bool { return len(m.got()) == 1 })
	p.finish(pipeline)
	if id := m.items[0].Identity; id.PID != 4194301 || id.ServiceName != "trainer" {
		t.Errorf("identity %+v", id)
	}
	if !strings.Contains(p.logs.String(), "process.json") || pipeline.Stats().Warnings != 1 {
		t.Errorf("not told once: %s", p.logs.String())
	}
}

func TestKeptDumpsAreDeliveredOnce(t *testing.T) {
	p := newPlace(t)
	folder := p.dead(4194301)
	p.dump(folder, 1, "exit", "a=1")
	keep := func(c *Config) { c.Keep = true }
	for run, want := range []int{1, 0} {
		m := &memory{name: "m"}
		p.finish(p.start(keep, m))
		if got := m.got(); len(got) != want {
			t.Errorf("run %d delivered %v", run, got)
		}
	}
	if got := p.files(folder); !slices.Equal(got, []string{"delivered"}) {
		t.Errorf("files %v", got)
	}
}

func TestTheSpoolIsBusyWhileFilesCome(t *testing.T) {
	const processes, dumps = 6, 20
	p := newPlace(t)
	m, n := &memory{name: "m"}, &memory{name: "n", export: func(_ context.Context, attempt int, _ *sink.Item) error {
		if attempt%5 == 0 {
			return errors.New("now and then")
		}
		return nil
	}}
	pipeline := p.start(nil, m, n)
	var writers sync.WaitGroup
	for i := range processes {
		folder := p.dead(4194200 + i)
		writers.Go(func() {
			for seq := 1; seq <= dumps; seq++ {
				// The reader may have taken the folder of a dead process away, as it may not that of a living one.
				if err := os.WriteFile(filepath.Join(p.path, folder, fmt.Sprintf("%06d.interval.heap", seq)), []byte("a=1"), 0o600); err != nil {
					return
				}
			}
		})
	}
	writers.Wait()
	p.finish(pipeline)
	stats := pipeline.Stats()
	if stats.Converted == 0 || stats.Converted != len(m.got()) || len(m.got()) != len(n.got()) {
		t.Errorf("converted %d, delivered %d and %d", stats.Converted, len(m.got()), len(n.got()))
	}
	found, _ := filepath.Glob(filepath.Join(p.path, "*", "*.heap"))
	if len(found) > 0 {
		t.Errorf("left: %v", found)
	}
}

func TestShutdownLeavesNoGoroutine(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 5 {
		p := newPlace(t)
		p.dump(p.dead(4194301), 1, "exit", "a=1")
		p.finish(p.start(nil, &memory{name: "a"}, &memory{name: "b"}))
	}
	p := newPlace(t)
	p.until("the goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
}

func TestNewWantsEverything(t *testing.T) {
	s, err := spool.Open(t.TempDir(), spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for want, cfg := range map[string]Config{
		"no spool and": {Sinks: []sink.Sink{&memory{}}, Convert: convertText},
		"no sink":      {Spool: s, Convert: convertText},
		"no converter": {Spool: s, Sinks: []sink.Sink{&memory{}}},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	pipeline, err := New(Config{Spool: s, Sinks: []sink.Sink{&memory{}}, Convert: convertText})
	if err != nil {
		t.Fatal(err)
	}
	if err := pipeline.Shutdown(context.Background()); err != nil {
		t.Errorf("shutdown without start: %v", err)
	}
}
