// SPDX-License-Identifier: Apache-2.0

package heapwirereceiver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/collector/receiver/xreceiver"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/heapwire/heapwire/convert/jemalloc/dumpgen"
	"github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/convert/torchmem/snapgen"
	"github.com/heapwire/heapwire/exporter/sink"
	"github.com/heapwire/heapwire/exporter/spool"
	"github.com/heapwire/heapwire/otelcol/heapwirereceiver/internal/metadata"
)

const patience = 2 * time.Minute

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for tick := time.NewTicker(5 * time.Millisecond); !done(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("after %v it is not so that %s", patience, what)
		}
	}
}

// heap is a dump of one stack with bytes live.
func heap(t *testing.T, seq int, bytesLive uint64) []byte {
	t.Helper()
	d := dumpgen.Dump{
		SampleBytes: 1, Stacks: []dumpgen.Stack{{Frames: []uint64{dumpgen.Token(1, 12)}, Objects: 1, Bytes: bytesLive}}, Threads: []string{""},
		Functions: []dumpgen.Function{{ID: 1, Name: "load", File: "/app/train.py", Line: 10}},
		Meta:      []dumpgen.Pair{{Key: "seq", Value: fmt.Sprint(seq)}, {Key: "sample_bytes", Value: "1"}, {Key: "allocated", Value: fmt.Sprint(bytesLive)}},
	}
	var b bytes.Buffer
	if err := d.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// job writes a process folder into a spool: process.json and one dump for each of lives.
func job(t *testing.T, spoolDir string, pid int, start uint64, lives ...uint64) string {
	t.Helper()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	safe := strings.ReplaceAll(host, "-", "_")
	name := fmt.Sprintf("%s-%d-%d", safe, pid, start)
	making := filepath.Join(t.TempDir(), name)
	put(t, filepath.Join(making, "process.json"), must(json.Marshal(sink.ProcessJSON{
		Schema: 1, Host: host, PID: pid, StartTicks: start, ServiceName: "trainer", Executable: "/usr/bin/python3", Variables: map[string]string{"RANK": "3", "SLURM_JOB_ID": "99"},
	})))
	for i, live := range lives {
		put(t, filepath.Join(making, fmt.Sprintf("%06d.interval.heap", i+1)), heap(t, i+1, live))
	}
	if err := os.Rename(making, filepath.Join(spoolDir, name)); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(spoolDir, name)
}

// own is a folder of this process, which lives.
func own(t *testing.T, spoolDir string, lives ...uint64) string {
	t.Helper()
	return job(t, spoolDir, os.Getpid(), must(spool.StartTicks(os.Getpid())), lives...)
}

const gone = 1<<22 - 3 // a pid that no process has

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func put(t *testing.T, path string, text []byte) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func files(dir string) []string {
	entries, _ := os.ReadDir(dir)
	var out []string
	for _, e := range entries {
		if e.Name() != "process.json" && e.Name() != ".delivery" {
			out = append(out, e.Name())
		}
	}
	return out
}

// sinks are what the receiver hands on to.
type sinks struct {
	profiles consumertest.ProfilesSink
	logs     consumertest.LogsSink
	metrics  consumertest.MetricsSink
}

// live adds up inuse_space over all that arrived, by what by says of a profile.
func (s *sinks) live(t *testing.T, by func(otlp.Pprof) string) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	for _, pd := range s.profiles.AllProfiles() {
		if err := otlp.Check(pd); err != nil {
			t.Error(err)
		}
		read, _ := otlp.Read(pd)
		for _, p := range read {
			for i, st := range p.Profile.SampleType {
				if st.Type != "inuse_space" {
					continue
				}
				for _, sample := range p.Profile.Sample {
					out[by(p)] += sample.Value[i]
				}
			}
		}
	}
	return out
}

func total(otlp.Pprof) string { return "" }

type running struct {
	xreceiver.Profiles
	set receiver.Settings
}

func start(t *testing.T, s *sinks, host component.Host, change func(*Config, *receiver.Settings)) running {
	t.Helper()
	cfg := createDefaultConfig().(*Config)
	cfg.PollInterval = 20 * time.Millisecond
	set := receivertest.NewNopSettings(metadata.Type)
	change(cfg, &set)
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	f := NewFactory().(xreceiver.Factory)
	r := must(f.CreateProfiles(t.Context(), set, cfg, &s.profiles))
	logs, metrics := must(f.CreateLogs(t.Context(), set, cfg, &s.logs)), must(f.CreateMetrics(t.Context(), set, cfg, &s.metrics))
	for _, c := range []component.Component{r, logs, metrics} {
		if err := c.Start(t.Context(), host); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, c := range []component.Component{metrics, logs, r} {
			if err := c.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	return running{r, set}
}

func TestDumpsOfManyProcessesArriveOnceAndLeaveTheSpool(t *testing.T) {
	dir, s := t.TempDir(), &sinks{}
	const processes = 60
	var want int64
	for i := range processes {
		job(t, dir, gone-i, 1, uint64(1000+i), uint64(2000+i))
		want += 3000 + 2*int64(i)
	}
	start(t, s, componenttest.NewNopHost(), func(cfg *Config, _ *receiver.Settings) {
		cfg.Spools = []string{dir}
		cfg.Resource = map[string]string{"slurm.job.id": "variables.SLURM_JOB_ID", "process.executable.path": "", "shim": "shim_version"}
	})
	until(t, "the spool is empty", func() bool { return len(files(dir)) == 0 })
	if got := s.live(t, total)[""]; got != want || len(s.profiles.AllProfiles()) != 2*processes {
		t.Errorf("%d bytes in %d requests, want %d in %d", got, len(s.profiles.AllProfiles()), want, 2*processes)
	}
	attrs := s.profiles.AllProfiles()[0].ResourceProfiles().At(0).Resource().Attributes().AsRaw()
	if attrs["service.name"] != "trainer" || attrs["heapwire.rank"] != int64(3) || attrs["slurm.job.id"] != "99" || attrs["process.executable.path"] != nil || attrs["shim"] != nil {
		t.Errorf("resource %v", attrs)
	}
	if n := s.metrics.DataPointCount(); n < 2*processes {
		t.Errorf("%d data points", n)
	}
	if n := s.logs.LogRecordCount(); n != processes {
		t.Errorf("%d log records, want one for each process that ended without its last dump", n)
	}
}

func TestFoldersThatComeAndGo(t *testing.T) {
	dir, s := t.TempDir(), &sinks{}
	r := start(t, s, componenttest.NewNopHost(), func(cfg *Config, _ *receiver.Settings) { cfg.Spools = []string{filepath.Join(dir, "*", "spool")} })
	var want int64
	for i := range 5 {
		pod := filepath.Join(dir, fmt.Sprint("pod", i))
		making := filepath.Join(t.TempDir(), "pod")
		if err := os.MkdirAll(filepath.Join(making, "spool"), 0o700); err != nil {
			t.Fatal(err)
		}
		own(t, filepath.Join(making, "spool"), 500)
		if err := os.Rename(making, pod); err != nil {
			t.Fatal(err)
		}
		want += 500
		until(t, "the dump has arrived", func() bool { return s.live(t, total)[""] == want })
		// The reader may be writing its notes into it meanwhile.
		until(t, "the pod's folder is gone", func() bool { return os.RemoveAll(pod) == nil })
	}
	h := r.Profiles.(*heapwireReceiver)
	until(t, "no folder is read any more", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.reading)+len(h.leaving) == 0
	})
	if all := h.stats(); all.Dumps != 5 || all.Pending != 0 {
		t.Errorf("stats of folders that have gone: %+v", all)
	}
}

// refusing answers as told until it is told nothing any more.
type refusing struct {
	*consumertest.ProfilesSink
	mu    sync.Mutex
	err   error
	tries int
}

func (r *refusing) ConsumeProfiles(ctx context.Context, pd pprofile.Profiles) error {
	r.mu.Lock()
	err := r.err
	r.tries++
	r.mu.Unlock()
	if err != nil {
		return err
	}
	return r.ProfilesSink.ConsumeProfiles(ctx, pd)
}

func (r *refusing) answer(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

func (r *refusing) tried() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tries
}

// statuses keeps what a component reports.
type statuses struct {
	component.Host
	mu  sync.Mutex
	all []componentstatus.Status
}

func (s *statuses) Report(e *componentstatus.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, e.Status())
}

func (s *statuses) got() []componentstatus.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

func only(t *testing.T, next xconsumer.Profiles, host component.Host, set receiver.Settings, change func(*Config)) xreceiver.Profiles {
	t.Helper()
	cfg := createDefaultConfig().(*Config)
	cfg.PollInterval = 20 * time.Millisecond
	change(cfg)
	r := must(NewFactory().(xreceiver.Factory).CreateProfiles(t.Context(), set, cfg, next))
	if err := r.Start(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestWhatIsNotTakenForNowStaysAndIsTriedAgain(t *testing.T) {
	dir, next, host := t.TempDir(), &refusing{ProfilesSink: new(consumertest.ProfilesSink)}, &statuses{Host: componenttest.NewNopHost()}
	next.answer(errors.New("sending queue is full"))
	folder := own(t, dir, 700)
	reader := sdk.NewManualReader()
	set := receivertest.NewNopSettings(metadata.Type)
	set.MeterProvider = sdk.NewMeterProvider(sdk.WithReader(reader))
	r := only(t, next, host, set, func(cfg *Config) { cfg.Spools = []string{dir} })
	until(t, "it was tried twice", func() bool { return next.tried() >= 2 })
	if got := files(folder); !slices.Equal(got, []string{"000001.interval.heap"}) {
		t.Errorf("files %q", got)
	}
	until(t, "the trouble is told", func() bool { return slices.Contains(host.got(), componentstatus.StatusRecoverableError) })
	next.answer(nil)
	until(t, "the spool is empty", func() bool { return len(files(folder)) == 0 })
	until(t, "its end is told", func() bool {
		got := host.got()
		return len(got) >= 2 && got[len(got)-1] == componentstatus.StatusOK
	})
	if n := next.SampleCount(); n != 2 {
		t.Errorf("%d samples", n)
	}
	got := counts(t, reader)
	if got["otelcol_receiver_accepted_profile_samples inuse_space:bytes"] != 1 || got["otelcol_receiver_refused_profile_samples inuse_objects:count"] < 2 || got["heapwire.exporter.dumps "] != 1 {
		t.Errorf("own metrics %v", got)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := set.MeterProvider.(*sdk.MeterProvider).Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// counts gives the sums that a reader has, by name and sample type.
func counts(t *testing.T, reader *sdk.ManualReader) map[string]int64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &rm); err != nil {
		t.Fatal(err)
	}
	out := map[string]int64{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
				for _, p := range sum.DataPoints {
					v, _ := p.Attributes.Value("sample_type")
					out[m.Name+" "+v.AsString()] += p.Value
				}
			}
		}
	}
	return out
}

func TestWhatIsRefusedForGoodIsQuarantined(t *testing.T) {
	dir, next := t.TempDir(), &refusing{ProfilesSink: new(consumertest.ProfilesSink)}
	next.answer(consumererror.NewPermanent(errors.New("no room for it")))
	folder := own(t, dir, 700)
	r := only(t, next, componenttest.NewNopHost(), receivertest.NewNopSettings(metadata.Type), func(cfg *Config) { cfg.Spools = []string{dir} })
	want := []string{"000001.interval.heap.rejected", "000001.interval.heap.rejected.txt"}
	until(t, "the dump is set aside", func() bool { return slices.Equal(files(folder), want) })
	if text := string(must(os.ReadFile(filepath.Join(folder, want[1])))); !strings.Contains(text, "no room for it") {
		t.Errorf("reason %q", text)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if next.tried() != 1 {
		t.Errorf("%d tries", next.tried())
	}
}

func TestABadFileCostsNothingElse(t *testing.T) {
	dir, s := t.TempDir(), &sinks{}
	folder := own(t, dir, 100)
	put(t, filepath.Join(folder, "000002.interval.heap"), []byte("no dump"))
	put(t, filepath.Join(folder, "000003.interval.heap"), heap(t, 3, 300))
	put(t, filepath.Join(dir, "stray"), []byte("x"))
	start(t, s, componenttest.NewNopHost(), func(cfg *Config, _ *receiver.Settings) {
		cfg.Spools = []string{dir, filepath.Join(dir, "never"), filepath.Join(dir, "stray")}
		cfg.MaxFileSize = 1 << 20
	})
	until(t, "both are there and the bad one is aside", func() bool {
		return s.live(t, total)[""] == 400 && slices.Contains(files(folder), "000002.interval.heap.rejected.txt")
	})
}

func TestLargeProfilesGoInParts(t *testing.T) {
	dir, s := t.TempDir(), &sinks{}
	folder := own(t, dir)
	o := dumpgen.Dump{SampleBytes: 1, Threads: []string{""}, Meta: []dumpgen.Pair{{Key: "seq", Value: "1"}, {Key: "sample_bytes", Value: "1"}}}
	for i := range uint32(200) {
		o.Stacks = append(o.Stacks, dumpgen.Stack{Frames: []uint64{dumpgen.Token(i+1, 1)}, Objects: 1, Bytes: 100})
		o.Functions = append(o.Functions, dumpgen.Function{ID: i + 1, Name: fmt.Sprint("function", i), File: fmt.Sprintf("/app/file%d.py", i), Line: 1})
	}
	var b bytes.Buffer
	if err := o.Write(&b); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(folder, "000001.interval.heap"), b.Bytes())
	start(t, s, componenttest.NewNopHost(), func(cfg *Config, _ *receiver.Settings) {
		cfg.Spools, cfg.MaxRequestSize = []string{dir}, 4000
	})
	until(t, "the spool is empty", func() bool { return len(files(folder)) == 0 })
	if got := s.live(t, total)[""]; got != 20000 || len(s.profiles.AllProfiles()) < 3 {
		t.Errorf("%d bytes in %d requests", got, len(s.profiles.AllProfiles()))
	}
	for _, pd := range s.profiles.AllProfiles() {
		if size := (&pprofile.ProtoMarshaler{}).ProfilesSize(pd); size > 4500 {
			t.Errorf("a request of %d bytes", size)
		}
	}
}

func pickled(t *testing.T, o snapgen.Options) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := snapgen.Generate(o).Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The folders that verl and torch_npu write, as they are.
func snapshots(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	oom := pickled(t, snapgen.Options{OOM: true, Capacity: 8 << 30})
	put(t, filepath.Join(dir, "verl/step4/torch_memory_rank2_pid77.pickle"), pickled(t, snapgen.Options{Whole: true}))
	put(t, filepath.Join(dir, "verl/oom_20260908-101112-123456/torch_memory_oom_rank2_pid77.pickle"), oom)
	put(t, filepath.Join(dir, "npu/oom_snapshot_78_20260908101112.pickle"), pickled(t, snapgen.Options{Form: snapgen.FormNPU, OOM: true, Capacity: 8 << 30}))
	return dir
}

func snapshotConfig(cfg *Config, dir string) {
	cfg.Snapshots = []SnapshotsConfig{{Path: filepath.Join(dir, "*"), ServiceName: "trainer", ResourceAttributes: map[string]string{"team": "r,l=1"}}}
}

func TestSnapshotsOfOthersBecomeProfilesLogsAndMetrics(t *testing.T) {
	dir, s := snapshots(t), &sinks{}
	start(t, s, componenttest.NewNopHost(), func(cfg *Config, _ *receiver.Settings) { snapshotConfig(cfg, dir) })
	kinds := func() map[string]int64 {
		return s.live(t, func(p otlp.Pprof) string {
			return fmt.Sprint(p.Attributes["memory_kind"], " ", p.Attributes["view"], " rank ", p.Resource.Attributes().AsRaw()["heapwire.rank"])
		})
	}
	until(t, "all have arrived", func() bool {
		k := kinds()
		return k["cuda oom rank 2"] > 0 && k["npu oom rank <nil>"] > 0 && k["cuda live rank 2"] > 0
	})
	until(t, "both errors are told", func() bool {
		ooms := 0
		for _, ld := range s.logs.AllLogs() {
			if ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0).EventName() == "exception" {
				ooms++
			}
		}
		return ooms == 2
	})
	step := false
	for _, md := range s.metrics.AllMetrics() {
		attrs := md.ResourceMetrics().At(0).Resource().Attributes().AsRaw()
		if attrs["service.name"] != "trainer" || attrs["team"] != "r,l=1" {
			t.Errorf("resource %v", attrs)
		}
		for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
			step = step || m.Name() == "heapwire.step" && m.Gauge().DataPoints().At(0).IntValue() == 4
		}
	}
	if !step {
		t.Error("no metric has the step of the folder's name")
	}
}

func TestNamesOfOnesOwnAreRead(t *testing.T) {
	dir, s := t.TempDir(), &sinks{}
	put(t, filepath.Join(dir, "worker12/at700.pickle"), pickled(t, snapgen.Options{Whole: true}))
	start(t, s, componenttest.NewNopHost(), func(cfg *Config, _ *receiver.Settings) {
		cfg.Snapshots = []SnapshotsConfig{{Path: dir, NamePattern: `worker(?P<rank>[0-9]+)/at(?P<step>[0-9]+)\.pickle$`}}
	})
	until(t, "the figures are there", func() bool { return len(s.metrics.AllMetrics()) > 0 })
	md := s.metrics.AllMetrics()[0].ResourceMetrics().At(0)
	step := int64(-1)
	for _, m := range md.ScopeMetrics().At(0).Metrics().All() {
		if m.Name() == "heapwire.step" {
			step = m.Gauge().DataPoints().At(0).IntValue()
		}
	}
	if rank := md.Resource().Attributes().AsRaw()["heapwire.rank"]; rank != int64(12) || step != 700 {
		t.Errorf("rank %v, step %d", rank, step)
	}
}

func TestOnlyTheViewsAskedFor(t *testing.T) {
	dir, s := snapshots(t), &sinks{}
	start(t, s, componenttest.NewNopHost(), func(cfg *Config, _ *receiver.Settings) { snapshotConfig(cfg, dir); cfg.Views = []string{"live"} })
	until(t, "all were read", func() bool { return s.logs.LogRecordCount() >= 2 && len(s.metrics.AllMetrics()) >= 3 })
	views := s.live(t, func(p otlp.Pprof) string { return p.Attributes["view"] })
	until(t, "the live view is there", func() bool {
		views = s.live(t, func(p otlp.Pprof) string { return p.Attributes["view"] })
		return views["live"] > 0
	})
	if len(views) != 1 {
		t.Errorf("views %v", views)
	}
}

// memoryStore is a storage extension that keeps what it is given.
type memoryStore struct {
	component.Component
	mu   sync.Mutex
	kept map[string][]byte
}

func (m *memoryStore) GetClient(context.Context, component.Kind, component.ID, string) (storage.Client, error) {
	return m, nil
}
func (m *memoryStore) Close(context.Context) error { return nil }
func (m *memoryStore) Get(_ context.Context, key string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kept[key], nil
}
func (m *memoryStore) Set(_ context.Context, key string, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept[key] = value
	return nil
}
func (m *memoryStore) Delete(context.Context, string) error               { return nil }
func (m *memoryStore) Batch(context.Context, ...*storage.Operation) error { return nil }

type withExtensions map[component.ID]component.Component

func (w withExtensions) GetExtensions() map[component.ID]component.Component { return w }

// Where the folder's own note is lost, as in a folder that cannot be written to, the storage knows what was delivered.
func TestSnapshotsAreDeliveredOnceAcrossRestarts(t *testing.T) {
	dir := snapshots(t)
	id := component.MustNewID("file_storage")
	host := withExtensions{id: &memoryStore{kept: map[string][]byte{}}}
	read := func(storage bool) (profiles, logs int) {
		s := &sinks{}
		set := receivertest.NewNopSettings(metadata.Type)
		cfg := createDefaultConfig().(*Config)
		cfg.PollInterval = 20 * time.Millisecond
		snapshotConfig(cfg, dir)
		if storage {
			cfg.StorageID = &id
		}
		f := NewFactory().(xreceiver.Factory)
		r := must(f.CreateProfiles(t.Context(), set, cfg, &s.profiles))
		_ = must(f.CreateLogs(t.Context(), set, cfg, &s.logs))
		if err := r.Start(t.Context(), host); err != nil {
			t.Fatal(err)
		}
		h := r.(*heapwireReceiver)
		until(t, "all were read", func() bool { st := h.stats(); return st.Converted == 3 && st.Pending == 0 })
		if err := r.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		for _, note := range must(filepath.Glob(filepath.Join(dir, "*", spool.FolderJournal))) {
			if err := os.Remove(note); err != nil {
				t.Fatal(err)
			}
		}
		return len(s.profiles.AllProfiles()), s.logs.LogRecordCount()
	}
	profiles, logs := read(true)
	if profiles < 3 || logs < 2 {
		t.Fatalf("%d profiles and %d log records", profiles, logs)
	}
	if again, told := read(true); again != 0 || told != 0 {
		t.Errorf("again %d profiles and %d log records", again, told)
	}
	if again, told := read(false); again != profiles || told != logs {
		t.Errorf("without the storage: %d profiles and %d log records, want %d and %d", again, told, profiles, logs)
	}
}

func TestStorageThatIsNotThereIsAnErrorOfStart(t *testing.T) {
	id := component.MustNewID("file_storage")
	for want, host := range map[string]component.Host{"no extension": withExtensions{}, "is no storage": withExtensions{id: nil}} {
		cfg := createDefaultConfig().(*Config)
		cfg.Spools, cfg.StorageID = []string{t.TempDir()}, &id
		r := must(NewFactory().(xreceiver.Factory).CreateProfiles(t.Context(), receivertest.NewNopSettings(metadata.Type), cfg, consumertest.NewNop()))
		if err := r.Start(t.Context(), host); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
		if err := r.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestOneInstanceForAllSignals(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	cfg.Spools = []string{t.TempDir()}
	set := receivertest.NewNopSettings(metadata.Type)
	f := NewFactory().(xreceiver.Factory)
	profiles := must(f.CreateProfiles(t.Context(), set, cfg, consumertest.NewNop()))
	logs := must(f.CreateLogs(t.Context(), set, cfg, consumertest.NewNop()))
	if component.Component(profiles) != component.Component(logs) {
		t.Error("two receivers for one configuration")
	}
	if err := profiles.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := logs.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	again := must(f.CreateProfiles(t.Context(), set, cfg, consumertest.NewNop()))
	if component.Component(again) == component.Component(profiles) {
		t.Error("a receiver that was shut down is used again")
	}
	if err := again.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := again.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Errorf("start after shutdown: %v", err)
	}
	if n := len(slices.Collect(maps.Keys(instances.of))); n != 0 {
		t.Errorf("%d instances are left", n)
	}
}
