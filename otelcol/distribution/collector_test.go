// SPDX-License-Identifier: Apache-2.0

package distribution

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/heapwire/heapwire/convert"
	"github.com/heapwire/heapwire/exporter/pyroscope/pyroscopetest"
	"github.com/heapwire/heapwire/internal/syncbuffer"
	"github.com/heapwire/heapwire/shim/test/pythons"
)

const (
	patience = 4 * time.Minute
	gate     = "--feature-gates=service.profilesSupport"
	// long has the tests run that take minutes.
	long = "HEAPWIRE_COLLECTOR"
)

// root is the repository's.
var root = func() string {
	wd, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	return filepath.Dir(filepath.Dir(wd))
}()

func binary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(root, "bin", "otelcol-heapwire")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%v: run make collector", err)
	}
	return path
}

func onlyLong(t *testing.T) {
	t.Helper()
	if os.Getenv(long) == "" {
		t.Skipf("takes minutes: run make test-collector, or set %s", long)
	}
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ; !done(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("after %v it is not so that %s", patience, what)
		}
	}
}

// given are the addresses that a test has, whether somebody listens there yet or not.
var given = struct {
	sync.Mutex
	to map[string]bool
}{to: map[string]bool{}}

// address gives one that nobody listens at, each once. It is below the ports that the kernel hands out (ip_local_port_range, 32768 and
// up), so that no client's port takes it before it is used.
func address(t *testing.T) string {
	t.Helper()
	given.Lock()
	defer given.Unlock()
	for range 100 {
		at := fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000))
		l, err := net.Listen("tcp", at)
		if err == nil {
			l.Close()
			if !given.to[at] {
				given.to[at] = true
				return at
			}
		}
	}
	t.Fatal("no port is free")
	return ""
}

// collector is a running bin/otelcol-heapwire.
type collector struct {
	t      *testing.T
	name   string
	args   []string
	env    []string
	cmd    *exec.Cmd
	waited chan struct{}
	log    syncbuffer.Buffer
}

// run starts a collector with one of the configurations, environment as "NAME=value", and more of the configuration as
// "yaml:key: value".
func run(t *testing.T, config string, env []string, more ...string) *collector {
	t.Helper()
	c := &collector{t: t, name: config, env: append(os.Environ(), env...), args: []string{gate, "--config", filepath.Join("config", config+".yaml")}}
	for _, m := range more {
		c.args = append(c.args, "--config", m)
	}
	t.Cleanup(func() {
		c.kill()
		if t.Failed() {
			lines := strings.Split(c.log.String(), "\n")
			t.Logf("%s said last:\n%s", c.name, strings.Join(lines[max(0, len(lines)-25):], "\n"))
		}
	})
	c.start()
	return c
}

func (c *collector) start() {
	c.t.Helper()
	c.log = syncbuffer.Buffer{}
	c.cmd = exec.Command(binary(c.t), c.args...)
	c.cmd.Env, c.cmd.Stdout, c.cmd.Stderr = c.env, &c.log, &c.log
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	waited := make(chan struct{})
	c.waited = waited
	go func() {
		_ = c.cmd.Wait()
		close(waited)
	}()
	until(c.t, c.name+" is ready", func() bool {
		select {
		case <-waited:
			c.t.Fatalf("%s ended: %v", c.name, c.cmd.ProcessState)
		default:
		}
		return strings.Contains(c.log.String(), "Everything is ready")
	})
}

func (c *collector) kill() {
	if c.cmd != nil && c.cmd.Process != nil {
		_ = c.cmd.Process.Kill()
		<-c.waited
	}
}

// stop ends it in order.
func (c *collector) stop() {
	c.t.Helper()
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	until(c.t, c.name+" has ended", func() bool {
		select {
		case <-c.waited:
			return true
		default:
			return false
		}
	})
	if code := c.cmd.ProcessState.ExitCode(); code != 0 {
		c.t.Errorf("%s ended with %d", c.name, code)
	}
}

// chain is an agent, a gateway, and a server that takes what the gateway pushes.
type chain struct {
	t         *testing.T
	spool     string
	snapshots string
	server    *pyroscopetest.Server
	through   string // where the gateway finds the server, if not at its own address
	metrics   string // the agent's own
	measures  string // the gateway's own
	endpoint  string
	agent     *collector
	gateway   *collector
}

func (c *chain) agentEnv() []string {
	host, port, _ := net.SplitHostPort(c.metrics)
	return []string{
		"HEAPWIRE_SPOOLS=" + c.spool, "HEAPWIRE_SNAPSHOTS=" + filepath.Join(c.snapshots, "*"), "GATEWAY_ENDPOINT=" + c.endpoint,
		"HEALTH_ENDPOINT=" + address(c.t), "METRICS_HOST=" + host, "METRICS_PORT=" + port, "HEAPWIRE_SNAPSHOTS_SERVICE=verl",
	}
}

// quickly are the agent's settings for tests: what was delivered is kept, for comparison.
var quickly = []string{
	"yaml:receivers::heapwire::keep: true",
	"yaml:receivers::heapwire::poll_interval: 200ms",
	"yaml:receivers::heapwire::max_spool_size: 4294967296",
}

func newChain(t *testing.T) *chain {
	t.Helper()
	binary(t)
	c := &chain{t: t, spool: t.TempDir(), snapshots: t.TempDir(), server: pyroscopetest.Start(), metrics: address(t), endpoint: address(t)}
	t.Cleanup(c.server.Close)
	return c
}

func (c *chain) pyroscope() string { return cmp.Or(c.through, c.server.URL) }

func (c *chain) startGateway(more ...string) {
	c.t.Helper()
	more = append([]string{"yaml:service::pipelines::logs::exporters: [debug]", "yaml:exporters::otlp_http/metrics::retry_on_failure::enabled: false", "yaml:exporters::debug::verbosity: detailed"}, more...)
	nowhere := address(c.t)
	c.measures = address(c.t)
	host, port, _ := net.SplitHostPort(c.measures)
	c.gateway = run(c.t, "gateway", []string{
		"OTLP_GRPC_ENDPOINT=" + c.endpoint, "OTLP_HTTP_ENDPOINT=" + address(c.t), "PYROSCOPE_SERVER_ADDRESS=" + c.pyroscope(),
		"METRICS_ENDPOINT=http://" + nowhere, "HEALTH_ENDPOINT=" + address(c.t), "METRICS_HOST=" + host, "METRICS_PORT=" + port,
	}, more...)
}

// gatewayThatRestamps takes profiles of any age: the server takes those of the last hour only.
func (c *chain) gatewayThatRestamps() { c.startGateway("yaml:exporters::pyroscope::stale: restamp") }

func (c *chain) startAgent(more ...string) {
	c.t.Helper()
	c.agent = run(c.t, "agent", c.agentEnv(), append(slices.Clone(quickly), more...)...)
}

// page is a collector's own metrics.
func page(address string) string {
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return string(text)
}

// value is one of the agent's page, summed over the series that have all of the labels.
func (c *chain) value(name string, labels ...string) (sum float64) {
	for line := range strings.Lines(page(c.metrics)) {
		line = strings.TrimSuffix(line, "\n")
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		if slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(line, l) }) {
			continue
		}
		v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err == nil {
			sum += v
		}
	}
	return sum
}

// dumps gives the live bytes of the dumps in the spool, by their time: those that were delivered and those that wait.
func (c *chain) dumps() (delivered map[int64]int64, waiting int) {
	c.t.Helper()
	delivered = map[int64]int64{}
	files, _ := filepath.Glob(filepath.Join(c.spool, "*", "delivered", "*.heap"))
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		h, err := convert.HeapDump(f, convert.Options{Name: name})
		f.Close()
		if err != nil {
			c.t.Fatal(err)
		}
		for i, st := range h.Profile.SampleType {
			if st.Type != "inuse_space" {
				continue
			}
			var live int64
			for _, s := range h.Profile.Sample {
				live += s.Value[i]
			}
			if live > 0 {
				delivered[h.Meta.Time.UnixNano()] += live
			}
		}
	}
	left, _ := filepath.Glob(filepath.Join(c.spool, "*", "*.heap"))
	return delivered, len(left)
}

// pushed gives the live bytes that the server has, by time; twice counts profiles of a time that had one already.
func (c *chain) pushed() (byTime map[int64]int64, twice int) {
	byTime = map[int64]int64{}
	seen := map[string]bool{}
	for _, p := range c.server.Pushes() {
		key := fmt.Sprint(p.Profile.TimeNanos, p.Labels, len(p.Profile.Sample))
		if seen[key] {
			twice++
		}
		seen[key] = true
		for i, st := range p.Profile.SampleType {
			if st.Type != "inuse_space" {
				continue
			}
			for _, s := range p.Profile.Sample {
				byTime[p.Profile.TimeNanos] += s.Value[i]
			}
		}
	}
	return byTime, twice
}

// files counts the dumps in the spool without a look into them.
func (c *chain) files() (delivered, waiting int) {
	done, _ := filepath.Glob(filepath.Join(c.spool, "*", "delivered", "*.heap"))
	left, _ := filepath.Glob(filepath.Join(c.spool, "*", "*.heap"))
	return len(done), len(left)
}

// drained waits until nothing waits in the spool, with patience for as long as something leaves it.
func (c *chain) drained() {
	c.t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	before, moved := 0, time.Now()
	for ; ; <-tick.C {
		done, waiting := c.files()
		switch {
		case waiting == 0 && done > 0:
			return
		case done != before:
			before, moved = done, time.Now()
		case time.Since(moved) > patience:
			c.t.Fatalf("nothing has left the spool for %v: %d dumps wait, %d are delivered", patience, waiting, done)
		}
	}
}

// complete waits until the spool is delivered, and says whether the server has each dump once, with its bytes.
func (c *chain) complete(atLeast int) {
	c.t.Helper()
	c.drained()
	until(c.t, "the spool is delivered", func() bool {
		done, waiting := c.dumps()
		return waiting == 0 && len(done) >= atLeast
	})
	want, _ := c.dumps()
	until(c.t, "the server has all dumps", func() bool { got, _ := c.pushed(); return len(got) >= len(want) })
	got, twice := c.pushed()
	if twice > 0 {
		c.t.Errorf("%d dumps came twice", twice)
	}
	if !maps.Equal(got, want) {
		c.t.Errorf("the server has %d dumps, the spool delivered %d, or their totals differ: %v, want %v", len(got), len(want), sumOf(got), sumOf(want))
	}
	c.t.Logf("%d dumps, %d bytes", len(want), sumOf(want))
}

// completeAtLeast is complete where what was on its way may come again: the server has each dump, once or more often.
func (c *chain) completeAtLeast(atLeast int) {
	c.t.Helper()
	c.drained()
	want, _ := c.dumps()
	if len(want) < atLeast {
		c.t.Errorf("%d dumps, want %d at least", len(want), atLeast)
	}
	until(c.t, "the server has all dumps", func() bool {
		got, _ := c.pushed()
		for at := range want {
			if _, ok := got[at]; !ok {
				return false
			}
		}
		return true
	})
	got, twice := c.pushed()
	for at, live := range want {
		if got[at]%live != 0 {
			c.t.Errorf("dump of %d: %d bytes, want %d or a multiple", at, got[at], live)
		}
	}
	c.t.Logf("%d dumps, %d bytes; %d came twice", len(want), sumOf(want), twice)
}

func sumOf(m map[int64]int64) (sum int64) {
	for _, v := range m {
		sum += v
	}
	return sum
}

// job starts a leaking Python program under the shim. It dumps all the time, and at its end.
func (c *chain) job(rounds int, more ...string) *exec.Cmd {
	c.t.Helper()
	cmd := c.command(rounds, more...)
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd
}

func (c *chain) command(rounds int, more ...string) *exec.Cmd {
	c.t.Helper()
	found, err := pythons.Find()
	if err != nil {
		c.t.Fatal(err)
	}
	found = slices.DeleteFunc(found, func(p pythons.Python) bool { return !p.Supported() })
	if len(found) == 0 {
		c.t.Skip("no CPython between 3.8 and 3.15 found")
	}
	program := filepath.Join(root, "examples", "leak_basic", "leak_basic.py")
	cmd := exec.Command(found[len(found)-1].Path, append([]string{program, "--rounds", strconv.Itoa(rounds)}, more...)...)
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+filepath.Join(root, "bin", "libheapwire.so"), "HEAPWIRE_SPOOL="+c.spool, "HEAPWIRE_EXPORT=off",
		"HEAPWIRE_INTERVAL=200ms", "HEAPWIRE_SAMPLE_BYTES=16384", "OTEL_SERVICE_NAME=trainer", "RANK=3")
	return cmd
}

func wait(t *testing.T, jobs ...*exec.Cmd) {
	t.Helper()
	for _, j := range jobs {
		if err := j.Wait(); err != nil {
			t.Errorf("the job: %v", err)
		}
	}
}
