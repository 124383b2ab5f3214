// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/heapwire/heapwire/exporter/otlp"
	"github.com/heapwire/heapwire/exporter/otlp/otlptest"
	"github.com/heapwire/heapwire/exporter/pyroscope/pyroscopetest"
)

// What the example holds when its 1 GiB is full, with a batch of 8: 200 MiB of parameters, a loss of 40 MiB a step, and
// the activations of 96 MiB of the step that fails.
const (
	deviceSteps    = 19 // steps that were over
	deviceLosses   = 720 << 20
	deviceLive     = deviceLosses + 200<<20 + 96<<20
	deviceFailing  = 40 << 20
	deviceCapacity = 1 << 30
)

// A job whose device runs out of memory: a receiver that nobody here wrote has the profile of what was live just then, the
// log record with the profile's id, and the allocator's figures; Pyroscope and the folder have the profile too.
func TestADeviceThatRunsOutOfMemoryIsTold(t *testing.T) {
	for _, py := range findPythons(t, python.Supported) {
		t.Run(py.String(), func(t *testing.T) {
			t.Parallel()
			runOutOfDeviceMemory(t, py)
		})
	}
}

func runOutOfDeviceMemory(t *testing.T, py python) {
	receiver, err := otlptest.Start(context.Background(), otlptest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := receiver.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	server := pyroscopetest.Start()
	t.Cleanup(server.Close)
	program := filepath.Join(here, "device_oom/device_oom.py")
	j := startRun(t, []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + receiver.HTTP, "PYROSCOPE_SERVER_ADDRESS=" + server.URL, "OTEL_SERVICE_NAME=trainer", "RANK=3", "STANDIN_TORCH=2.6",
	}, []string{"--drain-timeout", "60s"}, py.Path, program)
	if code := j.wait(); code != 1 || !strings.Contains(j.stdout.String(), fmt.Sprintf("after %d steps: CUDA out of memory", deviceSteps-1)) {
		t.Fatalf("exit status %d\n%s", code, j.report())
	}

	line := lineOf(t, program, "loss = empty(batch * (5 << 20))")
	frame := fmt.Sprintf("forward %s:%d", program, line)

	// The log record.
	records := withEvent(receiver.Logs(), otlp.EventException)
	if len(records) != 1 {
		t.Fatalf("%d log records of an exception, want one\n%s", len(records), j.report())
	}
	r, a := records[0].record, records[0].record.Attributes().AsRaw()
	for key, want := range map[string]any{
		"exception.type": "torch.OutOfMemoryError", "device": "cuda:0", "memory_kind": "cuda", "heapwire.reason": "oom",
		"heapwire.step": int64(deviceSteps - 1), "heapwire.oom.requested": int64(deviceFailing), "heapwire.oom.free": int64(deviceCapacity - deviceLive),
		"heapwire.oom.total": int64(deviceCapacity), "heapwire.oom.live": int64(deviceLive), "heapwire.oom.live_objects": int64(20),
		"heapwire.oom.reserved": int64(deviceLive), "heapwire.oom.inactive": int64(0), "heapwire.oom.largest_hole": int64(0),
		"heapwire.oom.after_unwinding": false, "heapwire.oom.live_at_dump": int64(deviceLive), "heapwire.oom.count": int64(1),
	} {
		if a[key] != want {
			t.Errorf("log record: %s is %v, want %v", key, a[key], want)
		}
	}
	if _, ok := a["heapwire.oom.limit"]; ok {
		t.Error("log record: a limit, and the process has none")
	}
	if text, _ := a["exception.stacktrace"].(string); !strings.HasPrefix(text, frame+"\n") {
		t.Errorf("log record: the stack is %q, want it to begin with %q", text, frame)
	}
	if r.SeverityNumber() != plog.SeverityNumberError || r.Timestamp() == 0 || a["exception.message"] != r.Body().Str() ||
		!strings.Contains(r.Body().Str(), fmt.Sprintf("%d bytes asked for by forward (device_oom.py:%d); %d live", deviceFailing, line, deviceLive)) {
		t.Errorf("log record: severity %v, time %v, %q", r.SeverityNumber(), r.Timestamp(), r.Body().Str())
	}
	top, _ := a["heapwire.top"].([]any)
	if len(top) != 3 {
		t.Fatalf("log record: %d stacks, want 3: %v", len(top), top)
	}
	if most := top[0].(map[string]any); most["bytes"] != int64(deviceLosses) || !strings.HasPrefix(most["stack"].(string), frame) {
		t.Errorf("log record: most is held by %v", most)
	}
	if got := records[0].resource["service.name"]; got != "trainer" {
		t.Errorf("log record of %v", got)
	}
	if got := records[0].resource["heapwire.rank"]; got != int64(3) {
		t.Errorf("log record of rank %v", got)
	}

	// The profile that it names.
	byID := map[string]string{}
	for _, pd := range receiver.Received() {
		d := pd.Dictionary()
		for _, rp := range pd.ResourceProfiles().All() {
			for _, sp := range rp.ScopeProfiles().All() {
				for _, p := range sp.Profiles().All() {
					id := p.ProfileID()
					sampleType := d.StringTable().At(int(p.SampleType().TypeStrindex()))
					if sampleType != "inuse_space" && sampleType != "alloc_space" {
						continue
					}
					var sum int64
					labels := map[string]string{}
					for _, i := range p.AttributeIndices().All() {
						kv := d.AttributeTable().At(int(i))
						labels[d.StringTable().At(int(kv.KeyStrindex()))] = kv.Value().AsString()
					}
					for _, s := range p.Samples().All() {
						sum += s.Values().At(0)
					}
					byID[hex.EncodeToString(id[:])] = fmt.Sprintf("%s %s %s %d", labels["memory_kind"], labels["device"], labels["view"], sum)
				}
			}
		}
	}
	id, _ := a["profile_id"].(string)
	if got, want := byID[id], fmt.Sprintf("cuda cuda:0 oom %d", deviceLive+deviceFailing); got != want {
		t.Errorf("profile %s is %q, want %q; there are %q", id, got, want, slices.Sorted(maps.Values(byID)))
	}
	for _, want := range []string{
		fmt.Sprintf("cuda cuda:0 live %d", deviceLive), fmt.Sprintf("cuda cuda:0 reserved %d", deviceLive), fmt.Sprintf("cuda cuda:0 peak %d", deviceLive),
	} {
		if !slices.Contains(slices.Collect(maps.Values(byID)), want) {
			t.Errorf("no profile %q among %q", want, slices.Sorted(maps.Values(byID)))
		}
	}

	// The figures.
	points := pointsOf(receiver.Metrics())
	for key, want := range map[string]int64{
		"heapwire.device.memory.reserved cuda:0": deviceLive, "heapwire.device.memory.requested cuda:0": deviceLive, "heapwire.device.memory.peak cuda:0": deviceLive,
		"heapwire.device.memory.inactive cuda:0": 0, "heapwire.device.memory.active cuda:0": deviceLive,
		"heapwire.device.memory.window.allocations cuda:0": 1 + 2*deviceSteps - 1, "heapwire.device.memory.window.frees cuda:0": deviceSteps - 1,
		"heapwire.device.memory.window.ooms cuda:0": 1, "heapwire.device.memory.stats.num_ooms cuda:0": 1,
		"hw.gpu.memory.limit cuda:0": deviceCapacity, "hw.gpu.memory.usage cuda:0": deviceLive,
		"heapwire.heap.live cuda:0": deviceLive,
	} {
		if got := points[key]; !slices.Equal(got, []int64{want}) {
			t.Errorf("metric %s: %v, want one point of %d", key, got, want)
		}
	}

	if retries := points["heapwire.device.memory.stats.num_alloc_retries cuda:0"]; len(retries) != 1 || retries[0] < 1 {
		t.Errorf("metric of retries: %v, want one point above 0", retries)
	}
	if steps := points["heapwire.step "]; !slices.Contains(steps, deviceSteps-1) {
		t.Errorf("metric heapwire.step: %v, want %d among them", steps, deviceSteps-1)
	}

	// The other sinks, and what a person reads.
	pushed := map[string]bool{}
	for _, p := range server.Pushes() {
		pushed[p.Labels["memory_kind"]+" "+p.Labels["device"]+" "+p.Labels["view"]+" "+p.Labels["rank"]] = true
	}
	for _, want := range []string{"cuda cuda:0 oom 3", "cuda cuda:0 live 3", "host  live 3"} {
		if !pushed[want] {
			t.Errorf("Pyroscope has no series %q: %v", want, pushed)
		}
	}
	found, err := filepath.Glob(filepath.Join(j.out, "*", "*.oom.cuda_0.oom.pb.gz"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%d profiles of the error in %s\n%s", len(found), j.out, j.report())
	}
	onDisk, err := readProfile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, s := range onDisk.Sample {
		sum += s.Value[1]
	}
	if sum != deviceLive+deviceFailing {
		t.Errorf("%s holds %d bytes", found[0], sum)
	}
	if _, err := os.Stat(strings.TrimSuffix(found[0], ".pb.gz") + ".html"); err != nil {
		t.Error(err)
	}
	summary, err := os.ReadFile(filepath.Join(j.out, "summary.txt"))
	if err != nil {
		t.Fatal(err)
	}
	told := "out of memory on cuda:0: 40.0 MiB asked for by forward device_oom.py:" + strconv.Itoa(line) + "; 1016.0 MiB live, 720.0 MiB of it from forward device_oom.py:" + strconv.Itoa(line)
	for name, text := range map[string]string{"summary.txt": string(summary), "standard error": j.stderr.String()} {
		if !strings.Contains(text, told) {
			t.Errorf("%s does not say %q:\n%s", name, told, text)
		}
	}
}

// lineOf is the number of the line of a program that holds a text.
func lineOf(t *testing.T, program, text string) int {
	t.Helper()
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(string(b), "\n") {
		if strings.Contains(line, text) {
			return i + 1
		}
	}
	t.Fatalf("%s has no line with %q", program, text)
	return 0
}

type told struct {
	resource map[string]any
	record   plog.LogRecord
}

// withEvent gives the log records of an event's name.
func withEvent(received []plog.Logs, name string) (records []told) {
	for _, ld := range received {
		for _, rl := range ld.ResourceLogs().All() {
			for _, sl := range rl.ScopeLogs().All() {
				for _, r := range sl.LogRecords().All() {
					if r.EventName() == name {
						records = append(records, told{rl.Resource().Attributes().AsRaw(), r})
					}
				}
			}
		}
	}
	return records
}

// pointsOf gives the values of the metrics by name and device, in order of arrival.
func pointsOf(received []pmetric.Metrics) map[string][]int64 {
	points := map[string][]int64{}
	add := func(m pmetric.Metric, p pmetric.NumberDataPoint) {
		device := func(key string) string {
			if v, ok := p.Attributes().Get(key); ok && v.Type() == pcommon.ValueTypeStr {
				return v.Str()
			}
			return ""
		}
		key := m.Name() + " " + device("device") + device("hw.id")
		points[key] = append(points[key], p.IntValue())
	}
	for _, md := range received {
		for _, rm := range md.ResourceMetrics().All() {
			for _, sm := range rm.ScopeMetrics().All() {
				for _, m := range sm.Metrics().All() {
					switch m.Type() {
					case pmetric.MetricTypeGauge:
						for _, p := range m.Gauge().DataPoints().All() {
							add(m, p)
						}
					case pmetric.MetricTypeSum:
						for _, p := range m.Sum().DataPoints().All() {
							add(m, p)
						}
					}
				}
			}
		}
	}
	return points
}
