// SPDX-License-Identifier: Apache-2.0

package pyroscope_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	pushv1 "github.com/grafana/pyroscope/api/gen/proto/go/push/v1"
	"google.golang.org/protobuf/proto"

	"github.com/heapwire/heapwire/convert/otlp/profiletest"
	"github.com/heapwire/heapwire/exporter/pyroscope"
	"github.com/heapwire/heapwire/exporter/pyroscope/pyroscopetest"
	"github.com/heapwire/heapwire/exporter/sink"
)

func item(p *profile.Profile) *sink.Item {
	return &sink.Item{
		Identity: sink.Identity{Host: "node7", PID: 4242, ServiceName: "trainer", Rank: "3", LocalRank: "1", WorldSize: "8"},
		Process:  "node7-4242-8123456", Base: "000003.interval", Seq: 3, Reason: "interval",
		Time: profiletest.When, Duration: time.Minute, Kind: "host", View: "live",
		Profile: p, ProfileID: sink.ProfileID("node7", 4242, 8123456, 3, "host", "live"),
	}
}

func start(t *testing.T) *pyroscopetest.Server {
	t.Helper()
	s := pyroscopetest.Start()
	s.At(profiletest.When.Add(time.Minute))
	t.Cleanup(s.Close)
	return s
}

func open(t *testing.T, cfg pyroscope.Config) *pyroscope.Sink {
	t.Helper()
	if cfg.Now == nil {
		cfg.Now = func() time.Time { return profiletest.When.Add(time.Minute) }
	}
	s, err := pyroscope.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := s.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

func push(t *testing.T, it *sink.Item) []pyroscopetest.Push {
	t.Helper()
	srv := start(t)
	if err := open(t, pyroscope.Config{Address: srv.URL}).Export(t.Context(), it); err != nil {
		t.Fatal(err)
	}
	return srv.Pushes()
}

// frames gives a sample's stack as the server's flame graph shows it: names only, leaf first.
func frames(s *profile.Sample) string {
	var out []string
	for _, l := range s.Location {
		if len(l.Line) == 0 {
			out = append(out, "VANISHES")
		}
		for _, ln := range l.Line {
			out = append(out, ln.Function.Name)
		}
	}
	return strings.Join(out, "; ")
}

// byStack sums a column by what flame graphs show.
func byStack(ps []*profile.Profile, sampleType string) map[string]int64 {
	out := map[string]int64{}
	for _, p := range ps {
		for i, st := range p.SampleType {
			if st.Type != sampleType {
				continue
			}
			for _, s := range p.Sample {
				if s.Value[i] != 0 {
					out[frames(s)] += s.Value[i]
				}
			}
		}
	}
	return out
}

func TestStacksArriveByName(t *testing.T) {
	pushes := push(t, item(profiletest.Heap()))
	if len(pushes) != 1 {
		t.Fatalf("%d pushes", len(pushes))
	}
	got := byStack([]*profile.Profile{pushes[0].Profile}, "inuse_space")
	want := map[string]int64{
		"c10::alloc_cpu(unsigned long); at::empty_cpu(); forward (attention.py); <module> (train.py)": 512 << 20,
		"leak.cpython-311-x86_64-linux-gnu.so!0xabc; forward (mlp.py); <module> (train.py)":           1000,
		"c10::alloc_cpu(unsigned long); at::empty_cpu(); <module> (train.py)":                         1 << 19,
		"forward (mlp.py); <module> (train.py)":                                                       2,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", lines(got), lines(want))
	}
}

func lines(m map[string]int64) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%12d %s\n", m[k], k)
	}
	return b.String()
}

// The server sums what it gets: counters since the process started would be added again at each push.
func TestCountersSinceStartAreLeftOut(t *testing.T) {
	p := push(t, item(profiletest.Heap()))[0].Profile
	var types []string
	for _, st := range p.SampleType {
		types = append(types, st.Type+"/"+st.Unit)
	}
	if !slices.Equal(types, []string{"inuse_objects/count", "inuse_space/bytes"}) {
		t.Errorf("sample types %v", types)
	}
	for _, s := range p.Sample {
		if s.Value[0] == 0 && s.Value[1] == 0 {
			t.Error("a stack without live memory was sent")
		}
	}

	window := item(profiletest.Heap())
	window.View = "alloc" // what was allocated in one window
	if p := push(t, window)[0].Profile; len(p.SampleType) != 4 {
		t.Errorf("%d sample types of a window's allocations", len(p.SampleType))
	}

	b := profiletest.New(profiletest.Alloc...)
	b.Add([]int64{1, 1}, b.Python(b.Func("f", "", "f.py", 1), 1))
	if pushes := push(t, item(b.Profile)); len(pushes) != 0 {
		t.Errorf("%d pushes of counters only", len(pushes))
	}
}

// Grafana knows memory:inuse_space:bytes:space:bytes and nothing like it.
func TestSeriesHasTheIDThatGrafanaKnows(t *testing.T) {
	it := item(profiletest.Heap())
	it.Profile.PeriodType, it.Profile.Period = &profile.ValueType{Type: "allocated_bytes", Unit: "bytes"}, 0
	got := push(t, it)[0]
	if got.Labels["__name__"] != "memory" || got.Labels["__delta__"] != "false" {
		t.Errorf("labels %v", got.Labels)
	}
	if pt := got.Profile.PeriodType; pt.Type != "space" || pt.Unit != "bytes" || got.Profile.Period == 0 {
		t.Errorf("period %d of %v", got.Profile.Period, pt)
	}
	if got.Profile.TimeNanos != profiletest.When.UnixNano() || got.Profile.DurationNanos != int64(time.Minute) {
		t.Errorf("time %d, duration %d", got.Profile.TimeNanos, got.Profile.DurationNanos)
	}
}

func TestLabels(t *testing.T) {
	f := func(name string, change func(*sink.Item), want map[string]string) {
		t.Helper()
		it := item(profiletest.Heap())
		change(it)
		got := push(t, it)[0].Labels
		for k, v := range want {
			if got[k] != v {
				t.Errorf("%s: label %s=%q, want %q", name, k, got[k], v)
			}
		}
		if len(got) > 20 {
			t.Errorf("%s: %d labels", name, len(got))
		}
		for k := range got {
			if strings.ContainsAny(k, ".-") || strings.Contains(k, "pid") || strings.Contains(k, "instance") {
				t.Errorf("%s: label %s", name, k)
			}
		}
	}
	f("host", func(*sink.Item) {}, map[string]string{
		"service_name": "trainer", "memory_kind": "host", "view": "live", "rank": "3", "local_rank": "1", "world_size": "8", "hostname": "node7", "device": "",
	})
	f("device", func(it *sink.Item) { it.Kind, it.Device, it.View = "cuda", "cuda:0", "peak" }, map[string]string{
		"memory_kind": "cuda", "device": "cuda:0", "view": "peak",
	})
	f("no service name", func(it *sink.Item) { it.Identity.ServiceName = "" }, map[string]string{"service_name": "unknown_service"})
	f("resource", func(it *sink.Item) {
		it.Identity.Resource = map[string]string{
			"service.version": "1.2", "service.namespace": "ml", "deployment.environment.name": "prod", "k8s.namespace.name": "train", "k8s.pod.name": "p-0",
			"team": "rl", "a.b-c": "x", "service.instance.id": "uuid", "process.pid": "1", "k8s.pod.uid": "u", "__secret__": "x", "9lives": "cat", "empty": "",
		}
	}, map[string]string{
		"service_version": "1.2", "service_namespace": "ml", "deployment": "prod", "namespace": "train", "pod": "p-0", "team": "rl", "a_b_c": "x", "_9lives": "cat",
		"k8s_pod_uid": "", "__secret__": "", "empty": "",
	})
	f("many", func(it *sink.Item) {
		it.Identity.Resource = map[string]string{}
		for i := range 100 {
			it.Identity.Resource[fmt.Sprintf("k%d", i)] = "v"
		}
	}, map[string]string{"service_name": "trainer", "rank": "3"})
	f("long and broken value", func(it *sink.Item) {
		it.Identity.Resource = map[string]string{"long": strings.Repeat("ü", 2000), "broken": "a\xffb"}
	}, map[string]string{"long": strings.Repeat("ü", 1024), "broken": "a\uFFFDb"})
}

// Text labels of samples become labels of the series, so they must not repeat one.
func TestSampleLabelsDoNotClashWithTheSeries(t *testing.T) {
	p := push(t, item(profiletest.Heap()))[0].Profile
	devices := 0
	for _, s := range p.Sample {
		devices += len(s.Label["device"])
		if len(s.NumLabel) != 0 {
			t.Error("a numeric label was sent: the server drops it")
		}
	}
	if devices != 1 {
		t.Errorf("%d samples with a device", devices)
	}
	it := item(profiletest.Heap())
	it.Device = "cuda:0"
	for _, s := range push(t, it)[0].Profile.Sample {
		if len(s.Label) != 0 {
			t.Errorf("sample labels %v beside device=cuda:0", s.Label)
		}
	}
}

func TestTwoFilesOfOneNameStayApart(t *testing.T) {
	b := profiletest.New(profiletest.Inuse...)
	for i, file := range []string{"/app/a/utils.py", "/app/b/utils.py", "/app/c/x/__init__.py", "/app/c/y/__init__.py", "/lib/a/utils.py"} {
		b.Add([]int64{1, int64(i + 1)}, b.Python(b.Func("load", "", file, 1), 5))
	}
	b.Add([]int64{1, 100}, b.Python(b.Func("main", "", "/app/main.py", 1), 5))
	got := byStack([]*profile.Profile{push(t, item(b.Profile))[0].Profile}, "inuse_space")
	want := map[string]int64{
		"load (app/a/utils.py)": 1, "load (app/b/utils.py)": 2, "load (x/__init__.py)": 3, "load (y/__init__.py)": 4, "load (lib/a/utils.py)": 5,
		"main (main.py)": 100,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got\n%swant\n%s", lines(got), lines(want))
	}
}

// The same frame at another address of another process is the same frame.
func TestAddressesDoNotTellProcessesApart(t *testing.T) {
	encode := func(base uint64) string {
		b := profiletest.New(profiletest.Inuse...)
		m := b.Mapping(base, base+0x10000, "/lib/libx.so", "abcd")
		m.Offset = 0x1000
		f := b.Func("x_alloc", "", "", 0)
		b.Add([]int64{1, 10}, b.Native(m, base+0x10, profile.Line{Function: f}))
		b.Add([]int64{1, 20}, b.Native(m, base+0x20, profile.Line{Function: f}))
		b.Add([]int64{1, 30}, b.Native(m, base+0x30))
		p := push(t, item(b.Profile))[0].Profile
		if len(p.Sample) != 2 {
			t.Errorf("%d samples, want the two of x_alloc as one", len(p.Sample))
		}
		for _, m := range p.Mapping {
			if !m.HasFunctions {
				t.Error("a mapping that claims to lack names: the server would look for symbols")
			}
		}
		return p.String()
	}
	if a, b := encode(0x7f0000000000), encode(0x7e1234560000); a != b {
		t.Errorf("%s\ndiffers from\n%s", a, b)
	}
}

func TestPythonFramesKeepAMappingOfTheirOwn(t *testing.T) {
	p := push(t, item(profiletest.Heap()))[0].Profile
	for _, l := range p.Location {
		python := strings.HasSuffix(l.Line[0].Function.Filename, ".py")
		if python != (l.Mapping.File == "[python]") {
			t.Errorf("%s is on mapping %s", l.Line[0].Function.Name, l.Mapping.File)
		}
	}
}

// Above 1000 frames the server cuts the leaf, which is the end that matters.
func TestDeepStacksLoseTheirMiddle(t *testing.T) {
	b := profiletest.New(profiletest.Inuse...)
	var stack []*profile.Location
	for i := range 3000 {
		stack = append(stack, b.Python(b.Func(fmt.Sprintf("f%d", i), "", "f.py", 1), 1))
	}
	b.Add([]int64{1, 10}, stack...)
	s := push(t, item(b.Profile))[0].Profile.Sample[0]
	name := func(i int) string { return s.Location[i].Line[0].Function.Name }
	if len(s.Location) != 1000 || name(0) != "f0 (f.py)" || name(999) != "f2999 (f.py)" || name(500) != "[frames left out]" {
		t.Errorf("%d frames from %s over %s to %s", len(s.Location), name(0), name(500), name(len(s.Location)-1))
	}
}

func TestLargeProfilesAreSplitAndAddUp(t *testing.T) {
	many := profiletest.New(profiletest.Inuse...)
	for i := range 16_001 {
		many.Add([]int64{1, int64(i + 1)}, many.Python(many.Func(fmt.Sprintf("f%d", i), "", "f.py", 1), 1))
	}
	long := profiletest.New(profiletest.Inuse...)
	for i := range 150 {
		long.Add([]int64{1, int64(i + 1)}, long.Python(long.Func(fmt.Sprintf("f%d%s", i, strings.Repeat("x", 20_000)), "", "f.py", 1), 1))
	}
	const small = 64 << 10
	generated := profiletest.Generate(profiletest.Shape{Stacks: 1000, Depth: 20, Functions: 1000, Types: 2, Seed: 3})
	for name, c := range map[string]struct {
		*profile.Profile
		maxBytes, parts int
	}{
		"many samples": {many.Profile, 0, 2},
		"long names":   {long.Profile, 0, 2},
		"generated":    {generated, small, 2},
	} {
		p := c.Profile
		srv := start(t)
		if err := open(t, pyroscope.Config{Address: srv.URL, MaxBytes: c.maxBytes}).Export(t.Context(), item(p)); err != nil {
			t.Fatal(err)
		}
		pushes := srv.Pushes()
		if len(pushes) < c.parts || c.maxBytes == 0 && len(pushes) > c.parts {
			t.Errorf("%s: %d pushes", name, len(pushes))
		}
		for _, x := range pushes {
			if c.maxBytes > 0 && x.Size > c.maxBytes {
				t.Errorf("%s: a part of %d bytes", name, x.Size)
			}
		}
		var got []*profile.Profile
		for _, x := range pushes {
			got = append(got, x.Profile)
			if !maps.Equal(x.Labels, pushes[0].Labels) || x.Profile.TimeNanos != profiletest.When.UnixNano() {
				t.Errorf("%s: a part belongs to another series or time", name)
			}
		}
		t.Logf("%s: %d parts, the first of %d bytes and %d samples", name, len(pushes), pushes[0].Size, len(pushes[0].Profile.Sample))
		whole, err := pyroscope.Shape(item(p))
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range []string{"inuse_space", "inuse_objects"} {
			if a, b := byStack(got, st), byStack([]*profile.Profile{whole}, st); !maps.Equal(a, b) || len(b) == 0 {
				t.Errorf("%s: the parts' %s do not add up to the whole", name, st)
			}
			if a, b := total(got, st), total([]*profile.Profile{p}, st); a != b {
				t.Errorf("%s: %d of %s arrived, want %d", name, a, st, b)
			}
		}
	}
}

func total(ps []*profile.Profile, sampleType string) (n int64) {
	for _, v := range byStack(ps, sampleType) {
		n += v
	}
	return n
}

func TestOneStackAboveTheLimitIsRefusedHere(t *testing.T) {
	b := profiletest.New(profiletest.Inuse...)
	b.Add([]int64{1, 1}, b.Python(b.Func(strings.Repeat("x", 3<<20), "", "f.py", 1), 1))
	err := open(t, pyroscope.Config{Address: start(t).URL}).Export(t.Context(), item(b.Profile))
	if !sink.IsPermanent(err) || !strings.Contains(err.Error(), "one stack alone takes") {
		t.Errorf("%v", err)
	}
}

func TestNegativeValuesAreRefusedHere(t *testing.T) {
	b := profiletest.New(profiletest.Inuse...)
	b.Add([]int64{1, -5}, b.Python(b.Func("f", "", "f.py", 1), 1))
	err := open(t, pyroscope.Config{Address: start(t).URL}).Export(t.Context(), item(b.Profile))
	if !sink.IsPermanent(err) || !strings.Contains(err.Error(), "negative") {
		t.Errorf("%v", err)
	}
}

// The server adds up what it gets twice, so a retry must not repeat the parts that were accepted.
func TestRetryGoesOnAfterTheAcceptedParts(t *testing.T) {
	b := profiletest.New(profiletest.Inuse...)
	for i := range 40 {
		b.Add([]int64{1, 1}, b.Python(b.Func(fmt.Sprintf("f%d", i), "", "f.py", 1), 1))
	}
	srv := start(t)
	s := open(t, pyroscope.Config{Address: srv.URL, MaxSamples: 10})
	it := item(b.Profile)
	other := item(profiletest.Heap())
	other.ProfileID[0]++

	srv.FailAfter(2, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	err := s.Export(t.Context(), it)
	var after *sink.RetryAfterError
	if !errors.As(err, &after) || after.Delay != 3*time.Second || sink.IsPermanent(err) || !strings.Contains(err.Error(), "part 3 of 4") {
		t.Fatalf("%v", err)
	}
	if err := s.Export(t.Context(), other); err != nil { // another item in between
		t.Fatal(err)
	}
	if err := s.Export(t.Context(), it); err != nil {
		t.Fatal(err)
	}
	var got []*profile.Profile
	for _, p := range srv.Pushes() {
		if len(p.Profile.Sample) == 10 {
			got = append(got, p.Profile)
		}
	}
	if n := total(got, "inuse_space"); len(got) != 4 || n != 40 {
		t.Errorf("%d parts with %d bytes, want 4 with 40", len(got), n)
	}
	if err := s.Export(t.Context(), it); err != nil { // delivered as a whole: a new export is a new delivery
		t.Fatal(err)
	}
	if n := len(srv.Pushes()); n != 4+1+4 {
		t.Errorf("%d pushes", n)
	}
}

func TestAnswers(t *testing.T) {
	f := func(name string, code int, header map[string]string, body, wantText string, wantPermanent bool, wantDelay time.Duration) {
		t.Helper()
		srv := start(t)
		srv.Fail(func(w http.ResponseWriter, _ *http.Request) {
			for k, v := range header {
				w.Header().Set(k, v)
			}
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		})
		err := open(t, pyroscope.Config{Address: srv.URL}).Export(t.Context(), item(profiletest.Heap()))
		if err == nil || !strings.Contains(err.Error(), wantText) || !strings.Contains(err.Error(), "node7-4242-8123456/000003.interval") {
			t.Errorf("%s: error %v, want %q", name, err, wantText)
			return
		}
		if got := sink.IsPermanent(err); got != wantPermanent {
			t.Errorf("%s: permanent %v, want %v", name, got, wantPermanent)
		}
		var after *sink.RetryAfterError
		if errors.As(err, &after) != (wantDelay > 0) || after != nil && after.Delay != wantDelay {
			t.Errorf("%s: %v, want a delay of %v", name, after, wantDelay)
		}
	}
	js := map[string]string{"Content-Type": "application/json"}
	f("validation", 400, js, `{"code":"invalid_argument","message":"invalid label name"}`, "invalid_argument: invalid label name, series {", true, 0)
	f("no tenant", 401, js, `{"code":"unauthenticated","message":"no org id"}`, "no org id", true, 0)
	f("forbidden", 403, nil, "", "403", true, 0)
	f("not there", 404, map[string]string{"Content-Type": "text/plain"}, "404 page not found", "404 page not found", true, 0)
	f("rate", 429, js, `{"code":"resource_exhausted","message":"push rate limit (4.0 MiB) exceeded while adding 1.2 MiB"}`, "push rate limit", false, 0)
	f("rate, when", 429, map[string]string{"Retry-After": "5"}, "", "429", false, 5*time.Second)
	f("garbage", 500, js, `{"code":"unknown","message":"gzip"}`, "unknown: gzip", true, 0)
	f("gateway may have passed it on", 502, nil, "", "502", true, 0)
	f("unavailable", 503, js, `{"code":"unavailable","message":"starting"}`, "starting", false, 0)
	f("gateway timeout", 504, nil, "", "504", true, 0)
	f("redirect", 302, map[string]string{"Location": "/login"}, "", "302", true, 0)
	f("a web page", 200, map[string]string{"Content-Type": "text/html"}, "<html>", "is not Pyroscope's", true, 0)
}

func TestRefusalsOfTheServer(t *testing.T) {
	for name, change := range map[string]func(*sink.Item){
		"too old":        func(it *sink.Item) { it.Time = it.Time.Add(-2 * time.Hour) },
		"from to-morrow": func(it *sink.Item) { it.Time = it.Time.Add(24 * time.Hour) },
	} {
		it := item(profiletest.Heap())
		change(it)
		// The clocks of sink and server differ.
		err := open(t, pyroscope.Config{Address: start(t).URL, Now: func() time.Time { return it.Time }}).Export(t.Context(), it)
		if !sink.IsPermanent(err) || !strings.Contains(err.Error(), "invalid_argument: profile is outside of ingestion window") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestServerThatIsDownMayBeTriedAgain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := "http://" + l.Addr().String()
	l.Close()
	err = open(t, pyroscope.Config{Address: address}).Export(t.Context(), item(profiletest.Heap()))
	if err == nil || sink.IsPermanent(err) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v", err)
	}
}

// A request that was written whole may have been accepted, and the server would add it up twice.
func TestNoAnswerIsPermanentOnceTheRequestIsWritten(t *testing.T) {
	srv := start(t)
	release := make(chan struct{})
	defer close(release)
	srv.Fail(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	err := open(t, pyroscope.Config{Address: srv.URL, Timeout: 100 * time.Millisecond}).Export(t.Context(), item(profiletest.Heap()))
	if !sink.IsPermanent(err) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "may have been accepted") {
		t.Errorf("timeout: %v", err)
	}
	srv.Fail(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			conn.Close()
		}
	})
	err = open(t, pyroscope.Config{Address: srv.URL}).Export(t.Context(), item(profiletest.Heap()))
	if !sink.IsPermanent(err) {
		t.Errorf("connection closed: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = open(t, pyroscope.Config{Address: srv.URL}).Export(ctx, item(profiletest.Heap()))
	if sink.IsPermanent(err) || !errors.Is(err, context.Canceled) {
		t.Errorf("never sent: %v", err)
	}
}

func TestWhoWeAre(t *testing.T) {
	f := func(name string, cfg pyroscope.Config, want map[string]string) {
		t.Helper()
		srv := start(t)
		u, err := url.Parse(srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Address == "userinfo" {
			u.User = url.UserPassword("7", "s3cret")
		}
		cfg.Address = u.String()
		if err := open(t, cfg).Export(t.Context(), item(profiletest.Heap())); err != nil {
			t.Fatal(err)
		}
		h := srv.Pushes()[0].Header
		want["Content-Type"], want["Connect-Protocol-Version"], want["User-Agent"] = "application/proto", "1", "heapwire/0.1.0"
		for k, v := range want {
			if h.Get(k) != v {
				t.Errorf("%s: header %s: %q, want %q", name, k, h.Get(k), v)
			}
		}
	}
	f("nobody", pyroscope.Config{Version: "0.1.0"}, map[string]string{"Authorization": "", "X-Scope-OrgID": ""})
	f("basic", pyroscope.Config{Version: "0.1.0", BasicAuthUser: "7", BasicAuthPassword: "s3cret"}, map[string]string{"Authorization": "Basic NzpzM2NyZXQ="})
	f("in the address", pyroscope.Config{Version: "0.1.0", Address: "userinfo"}, map[string]string{"Authorization": "Basic NzpzM2NyZXQ="})
	f("token and tenant", pyroscope.Config{Version: "0.1.0", AuthToken: "t0ken", TenantID: "team-a"}, map[string]string{"Authorization": "Bearer t0ken", "X-Scope-OrgID": "team-a"})
}

func TestMessagesHaveNoPassword(t *testing.T) {
	err := open(t, pyroscope.Config{Address: "http://7:s3cret@127.0.0.1:1/base"}).Export(t.Context(), item(profiletest.Heap()))
	if err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v", err)
	}
	if _, err := pyroscope.New(pyroscope.Config{Address: "ftp://7:s3cret@host"}); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v", err)
	}
}

func TestConfigFromEnv(t *testing.T) {
	env := map[string]string{}
	get := func(k string) string { return env[k] }
	if _, enabled, err := pyroscope.ConfigFromEnv(get); enabled || err != nil {
		t.Errorf("no variables: enabled %v, error %v", enabled, err)
	}
	env["PYROSCOPE_SERVER_ADDRESS"] = "http://pyroscope:4040"
	env["PYROSCOPE_BASIC_AUTH_USER"], env["PYROSCOPE_BASIC_AUTH_PASSWORD"], env["PYROSCOPE_TENANT_ID"] = "7", "s3cret", "team"
	cfg, enabled, err := pyroscope.ConfigFromEnv(get)
	if !enabled || err != nil || cfg.Address != "http://pyroscope:4040" || cfg.BasicAuthUser != "7" || cfg.BasicAuthPassword != "s3cret" || cfg.TenantID != "team" {
		t.Errorf("%+v, %v, %v", cfg, enabled, err)
	}
	env["PYROSCOPE_AUTH_TOKEN"] = "x"
	if _, _, err := pyroscope.ConfigFromEnv(get); err == nil || !strings.Contains(err.Error(), "PYROSCOPE_AUTH_TOKEN") {
		t.Errorf("two identities: %v", err)
	}
	delete(env, "PYROSCOPE_AUTH_TOKEN")
	env["PYROSCOPE_SERVER_ADDRESS"] = "pyroscope:4040"
	if _, _, err := pyroscope.ConfigFromEnv(get); err == nil || !strings.Contains(err.Error(), "PYROSCOPE_SERVER_ADDRESS") {
		t.Errorf("no scheme: %v", err)
	}
}

// The hand-written message against the published schema, unknown fields forbidden.
func TestRequestIsThePublishedMessage(t *testing.T) {
	raw := pyroscope.PushRequest([][2]string{{"a", "1"}, {"long", strings.Repeat("x", 300)}}, []byte("profile"))
	var m pushv1.PushRequest
	if err := proto.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	if len(m.ProtoReflect().GetUnknown()) != 0 || len(m.Series) != 1 || len(m.Series[0].Labels) != 2 || m.Series[0].Labels[1].Value != strings.Repeat("x", 300) ||
		len(m.Series[0].Samples) != 1 || string(m.Series[0].Samples[0].RawProfile) != "profile" {
		t.Errorf("%v", &m)
	}
	again, err := proto.MarshalOptions{Deterministic: true}.Marshal(&m)
	if err != nil {
		t.Fatal(err)
	}
	if string(again) != string(raw) {
		t.Error("the library encodes it otherwise")
	}
}

func TestExportLeavesTheItemAlone(t *testing.T) {
	it := item(profiletest.Heap())
	before := it.Profile.String()
	push(t, it)
	if it.Profile.String() != before {
		t.Error("the profile changed")
	}
}
