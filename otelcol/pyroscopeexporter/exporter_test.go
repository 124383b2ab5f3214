// SPDX-License-Identifier: Apache-2.0

package pyroscopeexporter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/consumer/consumererror/xconsumererror"
	"go.opentelemetry.io/collector/exporter/exporterhelper"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/exporter/xexporter"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/convert/otlp/profiletest"
	"github.com/heapwire/heapwire/exporter/pyroscope"
	"github.com/heapwire/heapwire/exporter/pyroscope/pyroscopetest"
	"github.com/heapwire/heapwire/otelcol/pyroscopeexporter/internal/metadata"
)

// dump is what a receiver hands on: the profiles of one dump of the process pid, n times as large as Heap.
func dump(t testing.TB, pid int, n int64, at time.Time) pprofile.Profiles {
	t.Helper()
	p := profiletest.Heap()
	for _, s := range p.Sample {
		for i := range s.Value {
			s.Value[i] *= n
		}
	}
	pd, err := otlp.Build(p, otlp.Options{
		Resource: map[string]any{
			"service.name": "trainer", "host.name": "node7", "process.pid": int64(pid), "heapwire.rank": int64(3), "k8s.namespace.name": "team-a", "k8s.pod.uid": "u",
		},
		Attributes: map[string]string{"memory_kind": "host", "view": "live", "reason": "interval"},
		ProfileID:  [16]byte{byte(pid), byte(n)}, Time: at, Duration: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	return pd
}

// together is one request with all of several, as a queue makes of them.
func together(t testing.TB, all ...pprofile.Profiles) pprofile.Profiles {
	t.Helper()
	for _, pd := range all[1:] {
		if err := pd.MergeTo(all[0]); err != nil {
			t.Fatal(err)
		}
	}
	return all[0]
}

func start(t *testing.T, change func(*Config)) (xexporter.Profiles, *pyroscopetest.Server) {
	t.Helper()
	server := pyroscopetest.Start()
	t.Cleanup(server.Close)
	cfg := createDefaultConfig().(*Config)
	cfg.ClientConfig.Endpoint = server.URL
	cfg.RetryConfig.InitialInterval = time.Millisecond
	if change != nil {
		change(cfg)
	}
	e, err := NewFactory().(xexporter.Factory).CreateProfiles(t.Context(), exportertest.NewNopSettings(metadata.Type), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	o := &onlyOnce{Profiles: e}
	t.Cleanup(func() {
		if err := o.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return o, server
}

// onlyOnce is shut down once: exporterhelper's retries can be closed only once.
type onlyOnce struct {
	xexporter.Profiles
	once sync.Once
	err  error
}

func (o *onlyOnce) Shutdown(ctx context.Context) error {
	o.once.Do(func() { o.err = o.Profiles.Shutdown(ctx) })
	return o.err
}

// waitingless has no queue: what the server said is what the caller gets.
func waitingless(cfg *Config) {
	cfg.QueueConfig = configoptional.None[exporterhelper.QueueBatchConfig]()
	cfg.RetryConfig.Enabled = false
}

func sums(p *profile.Profile) map[string]int64 {
	out := map[string]int64{}
	for _, s := range p.Sample {
		for i, v := range s.Value {
			out[p.SampleType[i].Type] += v
		}
	}
	return out
}

const liveBytes, liveObjects = 537396202, 1037 // of profiletest.Heap

func TestADumpArrivesOnceWithLabelsAndTotals(t *testing.T) {
	e, server := start(t, nil)
	if err := e.ConsumeProfiles(t.Context(), dump(t, 1, 1, time.Now())); err != nil {
		t.Fatal(err)
	}
	pushes, err := server.Wait(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	got := pushes[0]
	want := map[string]string{
		"__name__": "memory", "__delta__": "false", "service_name": "trainer", "hostname": "node7", "rank": "3", "namespace": "team-a", "memory_kind": "host", "view": "live",
	}
	if !maps.Equal(got.Labels, want) {
		t.Errorf("labels %v, want %v", got.Labels, want)
	}
	if s := sums(got.Profile); s["inuse_space"] != liveBytes || s["inuse_objects"] != liveObjects || s["alloc_space"] != 0 {
		t.Errorf("sums %v", s)
	}
	if p := got.Profile.PeriodType; p.Type != "space" || p.Unit != "bytes" {
		t.Errorf("period type %v", p)
	}
}

// The server adds up whatever it gets: what a process allocated since its start must become what it allocated since.
func TestAllocIsSentAsDifferences(t *testing.T) {
	e, server := start(t, waitingless)
	now := time.Now()
	for i := range int64(3) {
		if err := e.ConsumeProfiles(t.Context(), dump(t, 1, 1<<i, now.Add(time.Duration(i)*time.Second))); err != nil {
			t.Fatal(err)
		}
	}
	const once = 1<<30 + 3000 + 700 + 400 + 2
	var got []int64
	for _, p := range server.Pushes() {
		got = append(got, sums(p.Profile)["alloc_space"])
	}
	if want := fmt.Sprint([]int64{0, once, 2 * once}); fmt.Sprint(got) != want {
		t.Errorf("alloc_space %v, want %v", got, want)
	}
	keep, server := start(t, func(cfg *Config) { waitingless(cfg); cfg.Alloc = "keep" })
	drop, other := start(t, func(cfg *Config) { waitingless(cfg); cfg.Alloc = "drop" })
	for _, e := range []xexporter.Profiles{keep, drop} {
		if err := e.ConsumeProfiles(t.Context(), dump(t, 1, 1, now)); err != nil {
			t.Fatal(err)
		}
	}
	if kept, dropped := sums(server.Pushes()[0].Profile)["alloc_space"], sums(other.Pushes()[0].Profile)["alloc_space"]; kept != once || dropped != 0 {
		t.Errorf("keep: %d, drop: %d", kept, dropped)
	}
}

// Others send what they like: one dump of a process with one counter, the next with two.
func TestCountersThatComeAndGo(t *testing.T) {
	e, server := start(t, waitingless)
	now := time.Now()
	for i, types := range []int{3, 4, 3} {
		pd := dump(t, 1, int64(i+1), now.Add(time.Duration(i)*time.Second))
		all := pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles()
		n := 0
		all.RemoveIf(func(pprofile.Profile) bool { n++; return n > types })
		if err := e.ConsumeProfiles(t.Context(), pd); err != nil {
			t.Fatal(err)
		}
	}
	for i, p := range server.Pushes() {
		if s := sums(p.Profile); s["alloc_space"] != 0 || s["inuse_space"] != int64(i+1)*liveBytes {
			t.Errorf("push %d: %v", i, s)
		}
	}
	if len(server.Pushes()) != 3 {
		t.Errorf("%d pushes", len(server.Pushes()))
	}
}

// The server recognises no repeat: a retry must have in it only what it has not got.
func TestARetryHasOnlyWhatIsLeft(t *testing.T) {
	answer := func(status int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(status)
		}
	}
	e, server := start(t, nil)
	server.FailAfter(1, answer(http.StatusServiceUnavailable))
	server.FailAfter(0, answer(http.StatusTooManyRequests))
	now := time.Now()
	if err := e.ConsumeProfiles(t.Context(), together(t, dump(t, 1, 1, now), dump(t, 2, 2, now), dump(t, 3, 4, now))); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Wait(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if err := e.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	var total int64
	for _, p := range server.Pushes() {
		total += sums(p.Profile)["inuse_space"]
	}
	if total != 7*liveBytes || len(server.Pushes()) != 3 {
		t.Errorf("%d pushes with %d bytes, want 3 with %d", len(server.Pushes()), total, 7*liveBytes)
	}

	e, server = start(t, waitingless)
	server.FailAfter(1, answer(http.StatusServiceUnavailable, "Retry-After", "7"))
	err := e.ConsumeProfiles(t.Context(), together(t, dump(t, 1, 1, now), dump(t, 2, 2, now), dump(t, 3, 4, now)))
	var left xconsumererror.Profiles
	if !errors.As(err, &left) || left.Data().ResourceProfiles().Len() != 2 || consumererror.IsPermanent(err) || !strings.Contains(err.Error(), "Throttle (7s)") {
		t.Fatalf("error %v", err)
	}
	if err := e.ConsumeProfiles(t.Context(), left.Data()); err != nil || len(server.Pushes()) != 3 {
		t.Errorf("the rest: %v, %d pushes", err, len(server.Pushes()))
	}
}

// A profile in parts goes on behind the part that failed.
func TestARetryOfAProfileInPartsGoesOn(t *testing.T) {
	e, server := start(t, func(cfg *Config) { waitingless(cfg); cfg.MaxProfileSamples = 1 })
	server.FailAfter(2, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	pd := dump(t, 1, 1, time.Now())
	err := e.ConsumeProfiles(t.Context(), pd)
	var left xconsumererror.Profiles
	if !errors.As(err, &left) {
		t.Fatalf("error %v", err)
	}
	if err := e.ConsumeProfiles(t.Context(), left.Data()); err != nil {
		t.Fatal(err)
	}
	var total int64
	for _, p := range server.Pushes() {
		total += sums(p.Profile)["inuse_space"]
	}
	if total != liveBytes {
		t.Errorf("%d bytes in %d parts, want %d", total, len(server.Pushes()), liveBytes)
	}
}

// An outage that is longer than max_elapsed_time loses what waits; without one it does not. 200 refusals take a tenth of a
// second at least.
func TestRetriesEndWithMaxElapsedTimeOnly(t *testing.T) {
	f := func(maxElapsed time.Duration, arrives bool) {
		t.Helper()
		e, server := start(t, func(cfg *Config) {
			waitingless(cfg)
			cfg.RetryConfig.Enabled = true
			cfg.RetryConfig.MaxInterval, cfg.RetryConfig.MaxElapsedTime = time.Millisecond, maxElapsed
		})
		for range 200 {
			server.Fail(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
		}
		err := e.ConsumeProfiles(t.Context(), dump(t, 1, 1, time.Now()))
		if got := len(server.Pushes()) == 1; got != arrives || (err == nil) != arrives {
			t.Errorf("max_elapsed_time %v: %d pushes, error %v", maxElapsed, len(server.Pushes()), err)
		}
	}
	f(0, true)
	f(20*time.Millisecond, false)
}

func TestWhatTheServerRefusesIsPermanentAndCostsNothingElse(t *testing.T) {
	e, server := start(t, waitingless)
	server.FailAfter(1, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) })
	now := time.Now()
	err := e.ConsumeProfiles(t.Context(), together(t, dump(t, 1, 1, now), dump(t, 2, 2, now), dump(t, 3, 4, now)))
	if !consumererror.IsPermanent(err) || len(server.Pushes()) != 2 || !strings.Contains(err.Error(), "1 of 3 profiles") {
		t.Errorf("error %v, %d pushes", err, len(server.Pushes()))
	}
	err = e.ConsumeProfiles(t.Context(), dump(t, 1, 1, now.Add(-2*time.Hour)))
	if !consumererror.IsPermanent(err) || !strings.Contains(err.Error(), "stale=restamp") {
		t.Errorf("too old: error %v", err)
	}
}

func TestTenantComesFromTheResource(t *testing.T) {
	e, server := start(t, func(cfg *Config) {
		waitingless(cfg)
		cfg.TenantID, cfg.TenantAttribute = "everyone", "k8s.namespace.name"
	})
	now := time.Now()
	other := dump(t, 2, 1, now)
	other.ResourceProfiles().At(0).Resource().Attributes().Remove("k8s.namespace.name")
	for _, pd := range []pprofile.Profiles{dump(t, 1, 1, now), other} {
		if err := e.ConsumeProfiles(t.Context(), pd); err != nil {
			t.Fatal(err)
		}
	}
	got := server.Pushes()
	if a, b := got[0].Header.Get("X-Scope-OrgID"), got[1].Header.Get("X-Scope-OrgID"); a != "team-a" || b != "everyone" {
		t.Errorf("tenants %q, %q", a, b)
	}
}

func TestLabelsAreThoseOfTheConfiguration(t *testing.T) {
	e, server := start(t, func(cfg *Config) {
		waitingless(cfg)
		cfg.ResourceLabels = map[string]string{"process.pid": "pid", "host.name": ""}
		cfg.ProfileLabels = map[string]string{"reason": "why", "device": "gpu"}
		cfg.ProfileName = []NameRule{{SampleType: "inuse_space:bytes", Name: "space"}}
	})
	if err := e.ConsumeProfiles(t.Context(), dump(t, 5, 1, time.Now())); err != nil {
		t.Fatal(err)
	}
	byName := map[string]pyroscopetest.Push{}
	for _, p := range server.Pushes() {
		byName[p.Labels["__name__"]] = p
	}
	want := map[string]string{"__name__": "space", "__delta__": "false", "service_name": "trainer", "pid": "5", "why": "interval"}
	if got := byName["space"]; !maps.Equal(got.Labels, want) || sums(got.Profile)["inuse_space"] != liveBytes {
		t.Errorf("labels %v, want %v; sums %v", got.Labels, want, sums(got.Profile))
	}
	if got := sums(byName["memory"].Profile); got["inuse_objects"] != liveObjects || got["inuse_space"] != 0 {
		t.Errorf("the other sample types: %v", got)
	}
	gpu := 0
	for _, s := range byName["space"].Profile.Sample {
		if len(s.Label["gpu"]) == 1 && s.Label["gpu"][0] == "cuda:0" {
			gpu++
		}
		for k := range s.Label {
			if k != "gpu" {
				t.Errorf("label %s of a sample", k)
			}
		}
	}
	if gpu != 1 {
		t.Errorf("%d samples with a device", gpu)
	}
}

// cpuProfile is as a profiler of CPU time sends it: samples by their number, a period in nanoseconds.
func cpuProfile(t *testing.T, values ...int64) pprofile.Profiles {
	t.Helper()
	b := profiletest.New([2]string{"samples", "count"})
	for i, v := range values {
		s := b.Add([]int64{v}, b.Python(b.Func(fmt.Sprint("f", i), "", "a.py", 1), 2))
		s.Label = map[string][]string{"thread.name": {fmt.Sprint("t", i)}}
	}
	b.PeriodType, b.Period = &profile.ValueType{Type: "cpu", Unit: "nanoseconds"}, 50_000_000
	pd, err := otlp.Build(b.Profile, otlp.Options{Resource: map[string]any{"service.name": "web"}, Time: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return pd
}

func TestCPUProfilesArriveAsTime(t *testing.T) {
	e, server := start(t, waitingless)
	if err := e.ConsumeProfiles(t.Context(), cpuProfile(t, 2, 3, -1, 1<<62)); err != nil {
		t.Fatal(err)
	}
	got := server.Pushes()[0]
	st, pt := got.Profile.SampleType[0], got.Profile.PeriodType
	id := fmt.Sprintf("%s:%s:%s:%s:%s", got.Labels["__name__"], st.Type, st.Unit, pt.Type, pt.Unit)
	if id != "process_cpu:cpu:nanoseconds:cpu:nanoseconds" {
		t.Errorf("profile type %s", id)
	}
	if v := sums(got.Profile)["cpu"]; v != 250_000_000 {
		t.Errorf("%d ns, want 250000000: two samples that cannot be sent are left out", v)
	}
	if len(got.Labels) != 3 {
		t.Errorf("labels %v", got.Labels)
	}
}

func TestHostileProfilesAreAnErrorOrCounted(t *testing.T) {
	e, server := start(t, waitingless)
	first := func(pd pprofile.Profiles) pprofile.ProfilesSlice {
		return pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles()
	}
	f := func(name string, permanent bool, spoil func(pprofile.Profiles)) {
		t.Helper()
		pd := dump(t, 1, 1, time.Now())
		spoil(pd)
		err := e.ConsumeProfiles(t.Context(), pd)
		if err != nil && !consumererror.IsPermanent(err) || permanent != (err != nil) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	f("no dictionary", true, func(pd pprofile.Profiles) { pprofile.NewProfilesDictionary().MoveTo(pd.Dictionary()) })
	f("nothing", false, func(pd pprofile.Profiles) { pprofile.NewProfiles().MoveTo(pd) })
	f("stack outside", false, func(pd pprofile.Profiles) { first(pd).At(0).Samples().At(0).SetStackIndex(1 << 30) })
	f("all stacks outside", true, func(pd pprofile.Profiles) {
		for _, p := range first(pd).All() {
			for _, s := range p.Samples().All() {
				s.SetStackIndex(-5)
			}
		}
	})
	f("negative values", false, func(pd pprofile.Profiles) {
		for _, s := range first(pd).At(0).Samples().All() {
			s.Values().SetAt(0, -1)
		}
	})
	f("the largest values", false, func(pd pprofile.Profiles) {
		for _, s := range first(pd).At(0).Samples().All() {
			s.Values().SetAt(0, 1<<63-1)
		}
	})
	f("a stack of itself", false, func(pd pprofile.Profiles) {
		s := pd.Dictionary().StackTable().At(1)
		for range 5000 {
			s.LocationIndices().Append(s.LocationIndices().At(0))
		}
	})
	f("times before and after all time", true, func(pd pprofile.Profiles) {
		for _, p := range first(pd).All() {
			p.SetTime(1<<63 - 1)
			p.SetDurationNano(1<<64 - 1)
			p.SetPeriod(-1 << 63)
		}
		first(pd).At(0).SetTime(1)
	})
	f("a million samples", false, func(pd pprofile.Profiles) {
		p := first(pd).At(0)
		s := p.Samples().At(0)
		for p.Samples().Len() < 1_000_000 {
			s.CopyTo(p.Samples().AppendEmpty())
			s.Values().SetAt(0, 1)
		}
	})
	if len(server.Pushes()) == 0 {
		t.Error("what was whole did not arrive")
	}
}

func TestShutdownWithoutStart(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	cfg.ClientConfig.Endpoint = "http://127.0.0.1:1"
	e, err := NewFactory().(xexporter.Factory).CreateProfiles(t.Context(), exportertest.NewNopSettings(metadata.Type), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// accepts answers as a server does that takes everything.
type accepts struct{}

func (accepts) RoundTrip(r *http.Request) (*http.Response, error) {
	_, err := io.Copy(io.Discard, r.Body)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/proto"}}, Body: io.NopCloser(&bytes.Buffer{})}, err
}

// FuzzPush: whatever the request, it is sent or a permanent error, and never a panic.
func FuzzPush(f *testing.F) {
	b, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(dump(f, 1, 1, time.Now()))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	cfg := createDefaultConfig().(*Config)
	cfg.ClientConfig.Endpoint = "http://127.0.0.1:1"
	e, err := newExporter(cfg, exportertest.NewNopSettings(metadata.Type))
	if err != nil {
		f.Fatal(err)
	}
	if e.sink, err = pyroscope.New(pyroscope.Config{Address: cfg.ClientConfig.Endpoint, Transport: accepts{}, Stale: pyroscope.RestampStale}); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		pd, err := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(data)
		if err != nil {
			return
		}
		if err := e.push(t.Context(), pd); err != nil && !consumererror.IsPermanent(err) {
			t.Fatalf("to be tried again: %v", err)
		}
	})
}
