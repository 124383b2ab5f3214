// SPDX-License-Identifier: Apache-2.0

package distribution

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/heapwire/heapwire/convert/torchmem/snapgen"
	"github.com/heapwire/heapwire/exporter/pyroscope/pyroscopetest"
)

func configs(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("config", "*.yaml"))
	if err != nil || len(files) < 4 {
		t.Fatalf("configurations %q, %v", files, err)
	}
	return files
}

func validate(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := exec.Command(binary(t), append([]string{"validate", gate}, args...)...).CombinedOutput()
	return string(out), err
}

func TestConfigurationsAreValid(t *testing.T) {
	for _, file := range configs(t) {
		if out, err := validate(t, "--config", file); err != nil {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
}

func TestABadConfigurationIsRefusedWithItsKey(t *testing.T) {
	f := func(file, more string, want ...string) {
		t.Helper()
		out, err := validate(t, "--config", filepath.Join("config", file), "--config", more)
		if err == nil {
			t.Errorf("%s: valid", more)
		}
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%s: %s, want %q", more, out, w)
			}
		}
	}
	f("agent.yaml", "yaml:receivers::heapwire::poll_interval: 0s", "receivers::heapwire", "poll_interval: 0s: must be above 0")
	f("agent.yaml", "yaml:receivers::heapwire::spool: /x", "receivers", "heapwire", "spool")
	f("gateway.yaml", "yaml:exporters::pyroscope::alloc: sum", "exporters::pyroscope", "alloc: \"sum\": want delta, drop or keep")
}

func TestEveryDumpOfAJobReachesPyroscopeOnce(t *testing.T) {
	c := newChain(t)
	c.startGateway()
	c.startAgent()
	wait(t, c.job(40, "--pause", "0.1"))
	c.complete(2)
	push := c.server.Pushes()[0]
	for k, want := range map[string]string{"service_name": "trainer", "rank": "3", "memory_kind": "host", "view": "live", "__name__": "memory"} {
		if push.Labels[k] != want {
			t.Errorf("label %s=%q, want %q", k, push.Labels[k], want)
		}
	}
	found := slices.ContainsFunc(c.server.Pushes(), func(p pyroscopetest.Push) bool {
		for _, f := range p.Profile.Function {
			if f.Name == "remember_upload (leak_basic.py)" {
				return true
			}
		}
		return false
	})
	if !found {
		t.Error("no profile names remember_upload")
	}
	accepted := c.value("otelcol_receiver_accepted_profile_samples_total", `sample_type="inuse_space:bytes"`)
	if accepted == 0 {
		accepted = c.value("otelcol_receiver_accepted_profile_samples", `sample_type="inuse_space:bytes"`)
	}
	if accepted == 0 {
		t.Error("the agent's own metrics count no accepted sample of inuse_space")
	}
	documented(t, "heapwirereceiver", page(c.metrics), "heapwire_", 9)
	documented(t, "pyroscopeexporter", page(c.measures), "otelcol_exporter_pyroscope_", 1)
	c.agent.stop()
	c.gateway.stop()
}

func TestTheSidecarNeedsNoGateway(t *testing.T) {
	c := newChain(t)
	c.agent = run(t, "sidecar", []string{"HEAPWIRE_SPOOL=" + c.spool, "PYROSCOPE_SERVER_ADDRESS=" + c.server.URL}, "yaml:receivers::heapwire::keep: true")
	wait(t, c.job(20, "--pause", "0.1"))
	c.complete(2)
}

// write makes a snapshot in a folder of others, whole before it is there.
func write(t *testing.T, path string, o snapgen.Options) int64 {
	t.Helper()
	making := filepath.Join(t.TempDir(), "making")
	f, err := os.OpenFile(making, os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = snapgen.Generate(o).Write(f)
	}
	var size int64
	if err == nil {
		var info os.FileInfo
		if info, err = f.Stat(); err == nil {
			size = info.Size()
		}
		f.Close()
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = os.Rename(making, path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return size
}

func TestFoldersOfVerlAndTorchNPU(t *testing.T) {
	c := newChain(t)
	write(t, filepath.Join(c.snapshots, "verl/step4/torch_memory_rank2_pid77.pickle"), snapgen.Options{Whole: true})
	write(t, filepath.Join(c.snapshots, "verl/oom_20260908-101112-123456/torch_memory_oom_rank2_pid77.pickle"), snapgen.Options{OOM: true, Capacity: 8 << 30})
	write(t, filepath.Join(c.snapshots, "npu/oom_snapshot_78_20260908101112.pickle"), snapgen.Options{Form: snapgen.FormNPU, OOM: true, Capacity: 8 << 30})
	c.gatewayThatRestamps()
	c.startAgent()
	until(t, "all views are there", func() bool {
		kinds := map[string]bool{}
		for _, p := range c.server.Pushes() {
			kinds[p.Labels["memory_kind"]+" "+p.Labels["view"]+" "+p.Labels["rank"]] = true
		}
		return kinds["cuda live 2"] && kinds["cuda oom 2"] && kinds["npu oom "]
	})
	until(t, "the gateway has two log records of errors", func() bool {
		return strings.Count(c.gateway.log.String(), "EventName: exception") == 2
	})
	if !strings.Contains(c.gateway.log.String(), "exception.type: Str(torch.OutOfMemoryError)") {
		t.Error("the log records have no exception.type")
	}
}

func TestAnAgentThatIsKilledLosesNothing(t *testing.T) {
	onlyLong(t)
	c := newChain(t)
	c.startGateway()
	c.startAgent()
	var jobs []*exec.Cmd
	for range 20 {
		jobs = append(jobs, c.job(40, "--pause", "0.2", "--blocks", "8"))
	}
	for n := 1; n <= 3; n++ {
		until(t, "more dumps are delivered", func() bool { done, _ := c.dumps(); return len(done) >= 8*n })
		c.agent.kill()
		c.agent.start()
	}
	wait(t, jobs...)
	// What was on its way when it was killed comes again.
	c.completeAtLeast(24)
}

func TestWhatWaitsInAQueueOnDiskSurvives(t *testing.T) {
	onlyLong(t)
	c := newChain(t)
	c.through = "http://" + address(t)
	c.startPersistentGateway()
	c.startAgent()
	wait(t, c.job(40, "--pause", "0.1"))
	until(t, "the spool is delivered to the gateway", func() bool { done, waiting := c.dumps(); return waiting == 0 && len(done) >= 2 })
	if n := len(c.server.Pushes()); n != 0 {
		t.Fatalf("%d pushes to a server that was not told", n)
	}
	c.gateway.kill()
	c.gateway.env = append(c.gateway.env, "PYROSCOPE_SERVER_ADDRESS="+c.server.URL)
	c.gateway.start()
	c.complete(2)
	c.undamaged()
}

func TestAGatewayThatIsDownIsWaitedFor(t *testing.T) {
	onlyLong(t)
	c := newChain(t)
	c.startAgent()
	wait(t, c.job(40, "--pause", "0.1"))
	c.startGateway()
	c.complete(2)
}

func TestTwoHundredProcessesAtOnce(t *testing.T) {
	onlyLong(t)
	c := newChain(t)
	c.startGateway()
	c.startAgent()
	var jobs []*exec.Cmd
	for range 200 {
		job := c.command(5, "--pause", "0", "--blocks", "4")
		// The last dump of each, and few others, however long they take to get through.
		job.Env = append(job.Env, "HEAPWIRE_INTERVAL=10s")
		if err := job.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = job.Process.Kill() })
		jobs = append(jobs, job)
	}
	wait(t, jobs...)
	c.complete(200)
}

// gigabyte makes a snapshot of a little more than a gigabyte.
var gigabyte = snapgen.Options{Steps: 155_000}

func TestASnapshotOfAGigabyteUnderAMemoryLimit(t *testing.T) {
	onlyLong(t)
	c := newChain(t)
	size := write(t, filepath.Join(c.snapshots, "verl/step4/torch_memory_rank2_pid77.pickle"), gigabyte)
	c.gatewayThatRestamps()
	c.agent = run(t, "agent", append(c.agentEnv(), "GOMEMLIMIT=480MiB"), quickly...)
	until(t, "the snapshot is there", func() bool {
		return slices.ContainsFunc(c.server.Pushes(), func(p pyroscopetest.Push) bool { return p.Labels["view"] == "live" })
	})
	until(t, "it is delivered", func() bool {
		note, _ := os.ReadFile(filepath.Join(c.snapshots, "verl", ".heapwire-delivery"))
		return strings.Contains(string(note), "torch_memory_rank2_pid77.pickle")
	})
	peak := peakOf(t, c.agent.cmd.Process.Pid)
	t.Logf("snapshot of %d MB, the agent's peak resident memory %d MiB", size>>20, peak>>10)
	if size < 1<<30 {
		t.Errorf("the snapshot has %d bytes only", size)
	}
	if peak > 512<<10 {
		t.Errorf("the agent took %d KiB", peak)
	}
}

// peakOf reads VmHWM, in KiB.
func peakOf(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.Atoi(strings.Fields(text)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no VmHWM")
	return 0
}
