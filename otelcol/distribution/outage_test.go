// SPDX-License-Identifier: Apache-2.0

package distribution

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// outage is how long a part of the chain is away. It is the scenario: nothing is waited for in it.
const outage = time.Minute

// leaks starts a job that dumps until it is told to end.
func (c *chain) leaks() (end func()) {
	c.t.Helper()
	cmd := c.command(100, "--pause", "0.1", "--blocks", "4", "--hold")
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return func() {
		c.t.Helper()
		stdin.Close()
		wait(c.t, cmd)
	}
}

// away runs a job, has something go away for the time of an outage, in which no push may arrive, and come back. It returns
// when the job has ended, which is after new dumps have arrived again.
func (c *chain) away(goes, comes func()) {
	c.t.Helper()
	end := c.leaks()
	until(c.t, "some dumps are pushed", func() bool { return len(c.server.Pushes()) >= 5 })
	said := len(c.agent.log.String())
	goes()
	gone := time.Now()
	done, waiting := c.files()
	<-time.After(outage)
	until(c.t, "the job has dumped in the meantime", func() bool { d, w := c.files(); return d+w >= done+waiting+30 })
	if n := c.takenAfter(gone); n > 0 {
		c.t.Errorf("%d dumps came through while nothing could", n)
	}
	c.agent.saidLittle(said)
	back := time.Now()
	comes()
	until(c.t, "a dump arrives that was taken afterwards", func() bool { return c.takenAfter(back) > 0 })
	end()
}

// takenAfter counts what was pushed of the dumps after a time.
func (c *chain) takenAfter(at time.Time) (n int) {
	for _, p := range c.server.Pushes() {
		if p.Profile.TimeNanos > at.UnixNano() {
			n++
		}
	}
	return n
}

// saidLittle looks at what a collector's log has grown by during an outage. A sink is tried some twelve times in the first minute.
func (c *collector) saidLittle(from int) {
	c.t.Helper()
	text := c.log.String()[from:]
	lines := strings.Count(text, "\n")
	c.t.Logf("%s: %d lines, %d bytes of log during the outage, %d MiB of resident memory at most", c.name, lines, len(text), peakOf(c.t, c.cmd.Process.Pid)>>10)
	if lines > maxLines {
		c.t.Errorf("%s has logged %d lines in %v:\n%s", c.name, lines, outage, text[:min(len(text), 4000)])
	}
}

const maxLines = 500

// undamaged says whether the agent gave nothing up, and took little memory.
func (c *chain) undamaged() {
	c.t.Helper()
	if c.value("heapwire_exporter_accepted") == 0 {
		c.t.Error("the agent counts nothing that was accepted")
	}
	for _, name := range []string{"heapwire_exporter_refused", "heapwire_exporter_dropped"} {
		if n := c.value(name); n != 0 {
			c.t.Errorf("%s is %v", name, n)
		}
	}
	if rejected, _ := filepath.Glob(filepath.Join(c.spool, "*", "*.rejected*")); len(rejected) > 0 {
		c.t.Errorf("set aside: %q", rejected)
	}
	const limit = 256 // MiB; its configuration has 512
	if peak := peakOf(c.t, c.agent.cmd.Process.Pid) >> 10; peak > limit {
		c.t.Errorf("the agent took %d MiB, want %d at most", peak, limit)
	}
}

// startPersistentGateway has the configuration whose queue is on disk.
func (c *chain) startPersistentGateway() {
	c.t.Helper()
	nowhere := address(c.t)
	c.gateway = run(c.t, "persistent", []string{
		"OTLP_GRPC_ENDPOINT=" + c.endpoint, "PYROSCOPE_SERVER_ADDRESS=" + c.pyroscope(), "QUEUE_DIR=" + filepath.Join(c.t.TempDir(), "queue"),
		"METRICS_ENDPOINT=http://" + nowhere, "LOGS_ENDPOINT=http://" + nowhere,
	}, "yaml:exporters::otlp_http/metrics::retry_on_failure::enabled: false")
}

// door stands before the server. While it is closed, it answers as a server does that is starting, or overloaded.
type door struct {
	*httptest.Server
	mu     sync.RWMutex // held while a request goes through
	closed bool
}

// shut closes the door, after what is in it, or opens it.
func (d *door) shut(closed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = closed
}

func (c *chain) door() *door {
	c.t.Helper()
	to, err := url.Parse(c.server.URL)
	if err != nil {
		c.t.Fatal(err)
	}
	d := &door{}
	through := httputil.NewSingleHostReverseProxy(to)
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.mu.RLock()
		defer d.mu.RUnlock()
		if d.closed {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		through.ServeHTTP(w, r)
	}))
	c.t.Cleanup(d.Close)
	c.through = d.URL
	return d
}

func TestAwayForAMinute(t *testing.T) {
	onlyLong(t)
	f := func(name string, scenario func(c *chain)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newChain(t)
			scenario(c)
			c.undamaged()
		})
	}
	f("a gateway that is stopped", func(c *chain) {
		c.startGateway()
		c.startAgent()
		c.away(c.gateway.stop, c.gateway.start)
		c.complete(30)
	})
	f("a gateway that is killed, its queue on disk", func(c *chain) {
		c.startPersistentGateway()
		c.startAgent()
		c.away(c.gateway.kill, c.gateway.start)
		c.completeAtLeast(30)
	})
	f("a gateway that is killed, without a queue", func(c *chain) {
		c.startGateway("yaml:exporters::pyroscope::sending_queue::enabled: false", "yaml:exporters::pyroscope::retry_on_failure::enabled: false")
		c.startAgent()
		c.away(c.gateway.kill, c.gateway.start)
		c.completeAtLeast(30)
	})
	withoutPyroscope := func(start func(c *chain)) func(c *chain) {
		return func(c *chain) {
			d := c.door()
			start(c)
			c.startAgent()
			said := 0
			c.away(func() {
				d.shut(true)
				said = len(c.gateway.log.String())
			}, func() {
				c.gateway.saidLittle(said)
				d.shut(false)
			})
			c.complete(30)
		}
	}
	f("Pyroscope, the gateway's queue in memory", withoutPyroscope(func(c *chain) { c.startGateway("yaml:exporters::debug::verbosity: basic") }))
	f("Pyroscope, the gateway's queue on disk", withoutPyroscope(func(c *chain) { c.startPersistentGateway() }))
}

// A gateway that takes no more than its queue holds leaves the rest where it is: in the spool.
func TestWhatAFullQueueDoesNotTakeStaysInTheSpool(t *testing.T) {
	onlyLong(t)
	c := newChain(t)
	d := c.door()
	d.shut(true)
	c.startGateway("yaml:exporters::pyroscope::sending_queue::queue_size: 40000")
	c.startAgent()
	end := c.leaks()
	until(t, "the queue is full", func() bool { return strings.Contains(c.agent.log.String(), "sending queue is full") })
	until(t, "dumps wait in the spool", func() bool { _, waiting := c.files(); return waiting >= 20 })
	d.shut(false)
	end()
	c.complete(20)
	c.undamaged()
}

// What the Collector's own retries give up after five minutes, by default, is lost.
func TestNoConfigurationGivesUpOnProfilesOrLogRecords(t *testing.T) {
	for _, file := range configs(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		type exporter struct {
			Queue struct{ Enabled *bool } `yaml:"sending_queue"`
			Retry struct {
				Enabled    *bool
				MaxElapsed *string `yaml:"max_elapsed_time"`
			} `yaml:"retry_on_failure"`
		}
		var c struct {
			Exporters map[string]exporter
			Service   struct {
				Pipelines map[string]struct{ Exporters []string }
			}
		}
		if err := yaml.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
		off := func(enabled *bool) bool { return enabled != nil && !*enabled }
		looked := 0
		for signal, p := range c.Service.Pipelines {
			if signal == "metrics" {
				continue
			}
			for _, name := range p.Exporters {
				looked++
				e, ok := c.Exporters[name]
				if !ok {
					t.Fatalf("%s: no exporter %s", file, name)
				}
				// Without queue and retries an error reaches the receiver, whose spool has the dump.
				passedOn := off(e.Queue.Enabled) && off(e.Retry.Enabled)
				endless := !off(e.Retry.Enabled) && e.Retry.MaxElapsed != nil && *e.Retry.MaxElapsed == "0s"
				if !passedOn && !endless {
					t.Errorf("%s: exporters::%s::retry_on_failure: gives up on %s after a time", file, name, signal)
				}
			}
		}
		if looked == 0 {
			t.Errorf("%s: no exporter", file)
		}
	}
}
