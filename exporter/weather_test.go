// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"golang.org/x/sys/unix"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/heapwire/heapwire/convert"
	"github.com/heapwire/heapwire/convert/jemalloc/dumpgen"
	"github.com/heapwire/heapwire/exporter/otlp"
	"github.com/heapwire/heapwire/exporter/pyroscope"
	"github.com/heapwire/heapwire/exporter/sink"
	"github.com/heapwire/heapwire/exporter/spool"
)

// The variables that make the test program an exporter: the spool it reads, and where its sinks tell what they get.
const (
	helperSpool  = "HEAPWIRE_TEST_SPOOL"
	helperRecord = "HEAPWIRE_TEST_RECORD"
	// soakFor is how long the long forms take, such as 10m; without it the short ones run.
	soakFor = "HEAPWIRE_SOAK"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(helperSpool); path != "" {
		helper(path, os.Getenv(helperRecord))
	}
	os.Exit(m.Run())
}

func soak() time.Duration {
	d, _ := time.ParseDuration(os.Getenv(soakFor))
	return d
}

// recorder is a sink that tells another process what it gets.
type recorder struct{ name, url string }

func (r recorder) Name() string                { return r.name }
func (r recorder) Close(context.Context) error { return nil }
func (r recorder) Export(ctx context.Context, it *sink.Item) error {
	return r.tell(ctx, "dump", it.Process, strconv.FormatUint(it.Seq, 10), it.ProfileID)
}

func (r recorder) ExportEvent(ctx context.Context, ev *sink.Event) error {
	return r.tell(ctx, "death", ev.Process, strconv.FormatUint(ev.Last.Seq, 10), ev.Last.ProfileID)
}

func (r recorder) tell(ctx context.Context, what, process, seq string, id [16]byte) error {
	query := url.Values{"sink": {r.name}, "what": {what}, "process": {process}, "seq": {seq}, "id": {fmt.Sprintf("%x", id)}, "life": {strconv.Itoa(os.Getpid())}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// helper exports until it is killed, or until its standard input ends.
func helper(path, record string) {
	s, err := spool.Open(path, spool.Options{Poll: 5 * time.Millisecond})
	if err == nil {
		var p *Pipeline
		p, err = New(Config{
			Spool: s, Sinks: []sink.Sink{recorder{"one", record}, recorder{"two", record}}, Convert: convertText,
			Retry: Retry{Initial: time.Millisecond, Max: 10 * time.Millisecond}, NoSummary: true,
		})
		if err == nil {
			p.Start()
			_, _ = io.Copy(io.Discard, os.Stdin)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			err = p.Shutdown(ctx)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// records is the other end of recorders.
type records struct {
	*httptest.Server
	mu   sync.Mutex
	all  []url.Values
	fail func() bool
	open atomic.Int32 // connections
}

func newRecords(t *testing.T) *records {
	r := &records{}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.fail != nil && r.fail() {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		r.all = append(r.all, req.URL.Query())
	}))
	r.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			r.open.Add(1)
		case http.StateClosed, http.StateHijacked:
			r.open.Add(-1)
		}
	}
	r.Start()
	t.Cleanup(r.Close)
	return r
}

func (r *records) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all)
}

// TestAnExporterThatIsKilledAnywhereDeliversEachDumpOnce kills an exporter again and again while dumps come in, of
// processes that live and of some that die. HEAPWIRE_SOAK makes it 600 kills and more.
func TestAnExporterThatIsKilledAnywhereDeliversEachDumpOnce(t *testing.T) {
	kills, limit := 40, time.Now().Add(time.Minute)
	if d := soak(); d > 0 {
		kills, limit = 600, time.Now().Add(d)
	}
	p := newPlace(t)
	r := newRecords(t)
	random := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	var flaky atomic.Uint64
	r.fail = func() bool { return flaky.Add(1)%17 == 0 }
	folders := []string{p.living(), p.dead(4194200), p.dead(4194201)}
	// The dead ones must have something in them always, or they are taken away for good.
	written := map[string]int{}
	write := func(folder string) {
		written[folder]++
		reason := "interval"
		if written[folder]%5 == 0 {
			reason = "pressure"
		}
		p.dump(folder, written[folder], reason, "a=1")
	}
	start := func() (*exec.Cmd, io.Closer) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), helperSpool+"="+p.path, helperRecord+"="+r.URL)
		cmd.Stderr = &p.logs
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		return cmd, in
	}
	for i := 0; i < kills && time.Now().Before(limit); i++ {
		for range 1 + random.IntN(4) {
			write(folders[0])
		}
		if i == 0 {
			for range 2 * kills {
				write(folders[1])
			}
			write(folders[2])
		}
		before := r.len()
		cmd, _ := start()
		// Some lives end before anything was sent, most at a random point after.
		if random.IntN(8) > 0 {
			p.until("it has delivered something", func() bool { return r.len() > before })
			until := time.Now().Add(time.Duration(random.IntN(3000)) * time.Microsecond)
			for time.Now().Before(until) {
				runtime.Gosched()
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		p.until("what it had sent has been read", func() bool { return r.open.Load() == 0 })
	}
	last, in := start()
	in.Close()
	if err := last.Wait(); err != nil {
		t.Fatalf("the last life: %v\n%s", err, p.logs.String())
	}
	if left, _ := filepath.Glob(filepath.Join(p.path, "*", "*.heap")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}

	type key struct{ sink, what, process, seq string }
	ids := map[key]string{}
	order := map[[2]string]uint64{}
	final := map[[2]string]int{} // by life and sink: its last delivery
	for i, v := range r.all {
		final[[2]string{v.Get("life"), v.Get("sink")}] = i
	}
	at := map[key]int{}
	total := 0
	for i, v := range r.all {
		k := key{v.Get("sink"), v.Get("what"), v.Get("process"), v.Get("seq")}
		id, again := ids[k]
		before := at[k]
		at[k] = i
		if again {
			if id != v.Get("id") {
				t.Errorf("%v came again with another id", k)
			}
			// The kill fell between the delivery and its acknowledgement: nothing came from that life afterwards.
			if life := r.all[before].Get("life"); final[[2]string{life, k.sink}] != before || life == v.Get("life") {
				t.Errorf("%v came again, and was not the last that the killed exporter sent", k)
			}
			total++
			continue
		}
		ids[k] = v.Get("id")
		seq, _ := strconv.ParseUint(k.seq, 10, 64)
		if k.what == "dump" {
			if seq < order[[2]string{k.sink, k.process}] {
				t.Errorf("%v came after %d", k, order[[2]string{k.sink, k.process}])
			}
			order[[2]string{k.sink, k.process}] = seq
		}
	}
	for _, name := range []string{"one", "two"} {
		for folder, n := range written {
			for seq := 1; seq <= n; seq++ {
				if _, ok := ids[key{name, "dump", folder, strconv.Itoa(seq)}]; !ok {
					t.Errorf("sink %s never got %s/%d", name, folder, seq)
				}
			}
		}
		for _, folder := range folders[1:] {
			if _, ok := ids[key{name, "death", folder, strconv.Itoa(written[folder])}]; !ok {
				t.Errorf("sink %s was not told of the end of %s", name, folder)
			}
		}
	}
	t.Logf("%d deliveries over %d lives, %d repeats", len(r.all), kills+1, total)
}

// outcome of a dump that a sink had to fight for.
type outcomeOf struct {
	accepted, refused int
	retried           bool
}

// TestEndpointsInBadWeather shows each way in which an endpoint can fail, for two dumps, and then be well again.
func TestEndpointsInBadWeather(t *testing.T) {
	status := func(code int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			for i := 0; i+1 < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
		}
	}
	reset := func(w http.ResponseWriter, r *http.Request) {
		_, _ = r.Body.Read(make([]byte, 1))
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_ = conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
	hang := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}
	drip := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Length", "1000")
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for range 1000 {
			if _, err := w.Write([]byte{'x'}); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-tick.C:
			}
		}
	}
	delivered, lost := outcomeOf{2, 0, true}, outcomeOf{1, 1, false}
	for _, c := range []struct {
		name            string
		fault           http.HandlerFunc
		otlp, pyroscope outcomeOf
	}{
		{"resets mid-body", reset, delivered, outcomeOf{}}, // for Pyroscope it depends on how much was written
		{"hangs", hang, delivered, lost},
		{"slow-loris", drip, delivered, lost},
		{"400", status(400), lost, lost},
		{"401", status(401), lost, lost},
		{"413", status(413), lost, lost},
		{"429", status(429), delivered, delivered},
		{"429 with Retry-After", status(429, "Retry-After", "1"), delivered, delivered},
		{"500", status(500), lost, lost},
		{"502", status(502), delivered, lost},
		{"503", status(503, "Retry-After", "0"), delivered, delivered},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.folder(4194301, 1, "000001.interval.heap", "a=1", "000002.exit.heap", "a=2")
			serve := func() string {
				var asked atomic.Int32
				srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if asked.Add(1) == 1 {
						c.fault(w, r)
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
				}))
				t.Cleanup(srv.Close)
				return srv.URL
			}
			const timeout = 5 * time.Second // what is not at fault must be quicker on a busy machine, too
			o, err := otlp.New(otlp.Config{Endpoint: serve(), Timeout: timeout})
			if err != nil {
				t.Fatal(err)
			}
			py, err := pyroscope.New(pyroscope.Config{Address: serve(), Timeout: timeout})
			if err != nil {
				t.Fatal(err)
			}
			other := &memory{name: "other"}
			pipeline := p.start(nil, o, py, other)
			p.until("the other sink has both", func() bool { return len(other.got()) == 2 })
			p.finish(pipeline)
			check := func(name string, want outcomeOf) {
				s := pipeline.sinkStats(name)
				if got := (outcomeOf{s.Accepted, s.Refused, s.Retries > 0}); got != want && want != (outcomeOf{}) || s.Accepted+s.Refused != 2 {
					t.Errorf("%s: %+v, want %+v\n%s", name, got, want, p.logs.String())
				}
			}
			check("otlp", c.otlp)
			check("pyroscope", c.pyroscope)
		})
	}
}

// TestEndpointsThatCannotBeReached are those that never answer: nothing is lost, the dump waits in the spool.
func TestEndpointsThatCannotBeReached(t *testing.T) {
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	noName := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.DNSError{Err: "no such host", Name: "collector", IsNotFound: true}
	}}
	trusting := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13}}
	for name, cfg := range map[string]struct {
		address   string
		transport http.RoundTripper
		says      string
	}{
		"refused":                  {"http://127.0.0.1:1", nil, "connection refused"}, // a port that no program is given
		"the name is gone":         {"http://collector", noName, "no such host"},
		"an unknown certificate":   {secure.URL, trusting, "certificate"},
		"TLS spoken to plain HTTP": {"https://" + strings.TrimPrefix(newRecords(t).URL, "http://"), nil, "HTTP response to HTTPS client"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			folder := p.folder(4194301, 1, "000001.exit.heap", "a=1")
			py, err := pyroscope.New(pyroscope.Config{Address: cfg.address, Transport: cfg.transport})
			if err != nil {
				t.Fatal(err)
			}
			sinks := []sink.Sink{py}
			if cfg.transport == nil || strings.HasPrefix(cfg.address, "https") {
				o, err := otlp.New(otlp.Config{Endpoint: cfg.address})
				if err != nil {
					t.Fatal(err)
				}
				sinks = append(sinks, o)
			}
			pipeline := p.start(nil, sinks...)
			for _, s := range sinks {
				p.until(s.Name()+" was tried some times", func() bool { return pipeline.sinkStats(s.Name()).Retries > 2 })
				if err := pipeline.sinkStats(s.Name()).LastError; err == nil || !strings.Contains(err.Error(), cfg.says) {
					t.Errorf("%s: %v", s.Name(), err)
				}
			}
			p.halt(pipeline)
			if got := p.files(folder); !slices.Equal(got, []string{"000001.exit.heap"}) {
				t.Errorf("spool: %v", got)
			}
		})
	}
}

func TestAFullDiskIsEmptiedByDelivery(t *testing.T) {
	p := newPlace(t)
	name := p.dead(4194301)
	if err := os.RemoveAll(filepath.Join(p.path, name)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("heapwire", p.path, "tmpfs", 0, "size=64k,mode=0700"); err != nil {
		t.Skipf("mounting a small tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(p.path, unix.MNT_DETACH) })
	folder := filepath.Join(p.path, name)
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for seq := 1; seq <= 3; seq++ {
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("%06d.interval.heap", seq)), []byte("a=1"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(filepath.Join(folder, ".000004.tmp"))
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := f.Write(make([]byte, 512)); err != nil {
			break // full
		}
	}
	f.Close()
	one, two := &memory{name: "one"}, &memory{name: "two"}
	pipeline := p.start(nil, one, two)
	p.until("all is delivered and the folder gone", func() bool { _, err := os.Stat(folder); return os.IsNotExist(err) })
	p.finish(pipeline)
	if len(one.got()) != 3 || len(two.got()) != 3 {
		t.Errorf("delivered %v and %v\n%s", one.got(), two.got(), p.logs.String())
	}
	if !strings.Contains(p.logs.String(), "no space left on device") {
		t.Errorf("not told:\n%s", p.logs.String())
	}
}

func TestASpoolThatIsRemovedAndComesBackGoesOn(t *testing.T) {
	p := newPlace(t)
	folder := p.living()
	p.dump(folder, 1, "interval", "a=1")
	m := &memory{name: "m"}
	pipeline := p.start(nil, m)
	p.until("the first is delivered", func() bool { return len(m.got()) == 1 && len(p.files(folder)) == 0 })
	// All at once: the reader may be writing into the folder.
	if err := os.Rename(p.path, filepath.Join(t.TempDir(), "gone")); err != nil {
		t.Fatal(err)
	}
	p.until("that is told", func() bool { return strings.Contains(p.logs.String(), "no such file or directory") })
	if err := os.Mkdir(p.path, 0o700); err != nil {
		t.Fatal(err)
	}
	folder = p.living()
	p.dump(folder, 2, "interval", "a=1")
	p.until("the next is delivered", func() bool { return len(m.got()) == 2 })
	p.finish(pipeline)
}

func TestADumpThatIsReplacedIsNotFollowed(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret=1"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, replace := range map[string]func(path string) error{
		"symlink":   func(path string) error { return os.Symlink(secret, path) },
		"hard link": func(path string) error { return os.Link(secret, path) },
		"fifo":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"folder":    func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			folder := p.living()
			path := filepath.Join(p.path, folder, p.dump(folder, 1, "interval", "a=1"))
			release := make(chan struct{})
			// The first sink holds its turn while the second's dump is replaced under it; no profile is kept meanwhile.
			slow := &memory{name: "slow", export: func(context.Context, int, *sink.Item) error { <-release; return errors.New("not now") }}
			pipeline := p.start(nil, slow)
			p.until("it is in hand", func() bool { return slow.tries() == 1 })
			// At once: a dump that is gone would be another case.
			aside := filepath.Join(p.path, folder, ".aside.tmp")
			err := replace(aside)
			if err == nil {
				err = unix.Renameat2(unix.AT_FDCWD, aside, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
			}
			if errors.Is(err, unix.EINVAL) {
				t.Skip("this file system cannot exchange files")
			}
			if err := errors.Join(err, os.Remove(aside)); err != nil {
				t.Fatal(err)
			}
			pipeline.mu.Lock()
			for _, e := range pipeline.processes[folder].entries {
				pipeline.converted.drop(e)
			}
			pipeline.mu.Unlock()
			close(release)
			p.until("it is given up", func() bool { return pipeline.sinkStats("slow").GivenUp == 1 })
			p.dump(folder, 2, "interval", "a=1")
			p.until("the next one has its turn", func() bool { return slow.tries() > 1 })
			p.halt(pipeline)
			if text, _ := os.ReadFile(secret); string(text) != "secret=1" || len(slow.got()) > 0 {
				t.Errorf("secret %q, delivered %v", text, slow.got())
			}
		})
	}
}

// TestManyProcessesAtOnce: memory stays bounded, order is kept in each process. HEAPWIRE_SOAK makes it 200 processes with
// 50 dumps each.
func TestManyProcessesAtOnce(t *testing.T) {
	processes, dumps := 25, 20
	if soak() > 0 {
		processes, dumps = 200, 50
	}
	var text bytes.Buffer
	d := dumpgen.Dump{SampleBytes: 512 << 10, Threads: []string{""}}
	for i := range uint32(200) {
		d.Functions = append(d.Functions, dumpgen.Function{ID: i + 1, Name: fmt.Sprintf("function%d", i), File: "/app.py", Line: 1})
		d.Stacks = append(d.Stacks, dumpgen.Stack{Frames: []uint64{dumpgen.Token(i+1, 2), dumpgen.Token(1, 3)}, Objects: 3, Bytes: 3 << 20})
	}
	if err := d.Write(&text); err != nil {
		t.Fatal(err)
	}
	p := newPlace(t)
	for n := range processes {
		var files []string
		for seq := 1; seq <= dumps; seq++ {
			files = append(files, fmt.Sprintf("%06d.interval.heap", seq), text.String())
		}
		p.folder(4190000+n, 1, files...)
	}
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	var most atomic.Uint64
	var mu sync.Mutex
	last := map[string]uint64{}
	count := 0
	m := &callback{name: "m", export: func(it *sink.Item) error {
		mu.Lock()
		defer mu.Unlock()
		if it.Seq != last[it.Process]+1 {
			t.Errorf("%s: %d after %d", it.Process, it.Seq, last[it.Process])
		}
		last[it.Process] = it.Seq
		if count++; count%100 == 0 {
			runtime.GC() // what is reachable, not what waits to be collected
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			most.Store(max(most.Load(), now.HeapAlloc-min(before.HeapAlloc, now.HeapAlloc)))
		}
		return nil
	}}
	began := time.Now()
	pipeline := p.start(func(c *Config) {
		c.NoSummary = true
		c.Convert = func(r io.Reader, name string) (*convert.Heap, error) {
			return convert.HeapDump(r, convert.Options{Name: name})
		}
	}, m)
	for tick, deadline := time.NewTicker(10*time.Millisecond), began.Add(5*patience+soak()); ; <-tick.C {
		mu.Lock()
		done := count == processes*dumps
		mu.Unlock()
		if done {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("waited in vain until all are delivered")
		}
	}
	took := time.Since(began)
	p.finish(pipeline)
	t.Logf("%d dumps of %d bytes from %d processes in %v: %.1f MiB more in use at most", count, text.Len(), processes, took.Round(time.Millisecond), float64(most.Load())/(1<<20))
	if limit := uint64(64 << 20); most.Load() > limit {
		t.Errorf("%d bytes in use, want %d at most", most.Load(), limit)
	}
}

// callback is a sink that keeps nothing.
type callback struct {
	name   string
	export func(it *sink.Item) error
}

func (c *callback) Name() string                                  { return c.name }
func (c *callback) Close(context.Context) error                   { return nil }
func (c *callback) Export(_ context.Context, it *sink.Item) error { return c.export(it) }

// The clock is set back by a day while dumps wait: nothing is dropped for its age, nothing given up, nothing held.
func TestTheClockIsSetBack(t *testing.T) {
	p := newPlace(t)
	p.folder(4194301, 1, "000001.interval.heap", "a=1", "000002.exit.heap", "a=1")
	var back atomic.Bool
	var up atomic.Bool
	m := &memory{name: "m", export: func(context.Context, int, *sink.Item) error {
		if !up.Load() {
			return errors.New("not now")
		}
		return nil
	}}
	pipeline := p.start(func(c *Config) {
		c.Limits = spool.Limits{Age: time.Hour}
		c.now = func() time.Time {
			if back.Load() {
				return time.Now().Add(-24 * time.Hour)
			}
			return time.Now()
		}
	}, m)
	p.until("it was tried", func() bool { return m.tries() > 0 })
	back.Store(true)
	if s := pipeline.Stats(); s.Oldest != 0 {
		t.Errorf("age %v", s.Oldest)
	}
	up.Store(true)
	p.finish(pipeline)
	if s := pipeline.Stats(); len(m.got()) != 2 || len(s.Dropped) != 0 {
		t.Errorf("delivered %v, dropped %v", m.got(), s.Dropped)
	}
}

// faultyGRPC answers the first request as it is told, and accepts the others.
type faultyGRPC struct {
	pprofileotlp.UnimplementedGRPCServer
	fault func(context.Context) error
	asked atomic.Int32
}

func (g *faultyGRPC) Export(ctx context.Context, _ pprofileotlp.ExportRequest) (pprofileotlp.ExportResponse, error) {
	if g.asked.Add(1) == 1 {
		return pprofileotlp.NewExportResponse(), g.fault(ctx)
	}
	return pprofileotlp.NewExportResponse(), nil
}

// TestGRPCEndpointsInBadWeather is TestEndpointsInBadWeather over gRPC.
func TestGRPCEndpointsInBadWeather(t *testing.T) {
	answer := func(code codes.Code, retry ...time.Duration) func(context.Context) error {
		return func(context.Context) error {
			st := status.New(code, "because")
			for _, delay := range retry {
				var err error
				if st, err = st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(delay)}); err != nil {
					return err
				}
			}
			return st.Err()
		}
	}
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	delivered, lost := outcomeOf{2, 0, true}, outcomeOf{1, 1, false}
	for _, c := range []struct {
		name  string
		fault func(context.Context) error
		want  outcomeOf
	}{
		{"UNAVAILABLE", answer(codes.Unavailable), delivered},
		{"UNAVAILABLE with RetryInfo", answer(codes.Unavailable, time.Second), delivered},
		{"RESOURCE_EXHAUSTED", answer(codes.ResourceExhausted), lost},
		{"RESOURCE_EXHAUSTED with RetryInfo", answer(codes.ResourceExhausted, time.Millisecond), delivered},
		{"INVALID_ARGUMENT", answer(codes.InvalidArgument), lost},
		{"UNAUTHENTICATED", answer(codes.Unauthenticated), lost},
		{"INTERNAL", answer(codes.Internal), lost},
		{"hangs", hang, delivered},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.folder(4194301, 1, "000001.interval.heap", "a=1", "000002.exit.heap", "a=2")
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer()
			pprofileotlp.RegisterGRPCServer(server, &faultyGRPC{fault: c.fault})
			go func() { _ = server.Serve(l) }()
			t.Cleanup(server.Stop)
			const timeout = 5 * time.Second // what is not at fault must be quicker on a busy machine, too
			o, err := otlp.New(otlp.Config{Endpoint: "http://" + l.Addr().String(), Protocol: otlp.GRPC, Timeout: timeout})
			if err != nil {
				t.Fatal(err)
			}
			pipeline := p.start(nil, o)
			p.finish(pipeline)
			s := pipeline.sinkStats("otlp")
			if got := (outcomeOf{s.Accepted, s.Refused, s.Retries > 0}); got != c.want {
				t.Errorf("%+v, want %+v\n%s", got, c.want, p.logs.String())
			}
		})
	}
}

// TestAGRPCConnectionThatBreaksIsMadeAgain resets the connection in the midst of a request.
func TestAGRPCConnectionThatBreaksIsMadeAgain(t *testing.T) {
	p := newPlace(t)
	p.folder(4194301, 1, "000001.interval.heap", "a=1", "000002.exit.heap", "a=2")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	connections := &breaking{Listener: l}
	server := grpc.NewServer()
	pprofileotlp.RegisterGRPCServer(server, &faultyGRPC{fault: func(ctx context.Context) error {
		connections.reset()
		<-ctx.Done()
		return ctx.Err()
	}})
	go func() { _ = server.Serve(connections) }()
	t.Cleanup(server.Stop)
	o, err := otlp.New(otlp.Config{Endpoint: "http://" + l.Addr().String(), Protocol: otlp.GRPC})
	if err != nil {
		t.Fatal(err)
	}
	pipeline := p.start(nil, o)
	p.finish(pipeline)
	if s := pipeline.sinkStats("otlp"); s.Accepted != 2 || s.Refused != 0 || s.Retries == 0 {
		t.Errorf("stats %+v\n%s", s, p.logs.String())
	}
}

// breaking is a listener whose connections can be reset.
type breaking struct {
	net.Listener
	mu   sync.Mutex
	open []net.Conn
}

func (b *breaking) Accept() (net.Conn, error) {
	c, err := b.Listener.Accept()
	if err == nil {
		b.mu.Lock()
		b.open = append(b.open, c)
		b.mu.Unlock()
	}
	return c, err
}

func (b *breaking) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.open {
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	b.open = nil
}
