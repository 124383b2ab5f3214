// SPDX-License-Identifier: Apache-2.0

package sink_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"testing"
	"time"

	"github.com/heapwire/heapwire/exporter/sink"
)

const process = `{"schema": 1, "host": "node7", "pid": 4242, "start_ticks": 8123456, "boot_id": "3f0c", "start_time_unix_nano": 1764400000000000000,
 "parent_pid": 4200, "executable": "/usr/bin/python3.11", "python_version": "3.11.7",
 "service_name": "trainer", "resource_attributes": "deployment.environment.name=prod,team=r%2Cl,service.name=other",
 "variables": {"RANK": "0", "LOCAL_RANK": "3", "WORLD_SIZE": "512", "SLURM_PROCID": "9", "SLURM_JOB_ID": "77"},
 "container_id": "0123456789abcdef", "forked": true, "shim_version": "0.1.0", "jemalloc_version": "5.3.0-0", "sample_bytes": 524288, "later": [1]}`

func parse(t *testing.T, text string) sink.Identity {
	t.Helper()
	read, err := sink.ParseProcessJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return read.Identity()
}

func TestIdentityAsResourceAttributes(t *testing.T) {
	got := parse(t, process).Attributes()
	want := map[string]any{
		"service.name": "trainer", "deployment.environment.name": "prod", "team": "r,l", "host.name": "node7", "container.id": "0123456789abcdef",
		"process.pid": int64(4242), "process.parent_pid": int64(4200), "process.creation.time": "2025-11-29T07:06:40Z",
		"process.executable.path": "/usr/bin/python3.11", "process.executable.name": "python3.11",
		"process.runtime.name": "cpython", "process.runtime.version": "3.11.7",
		"heapwire.rank": int64(0), "heapwire.local_rank": int64(3), "heapwire.world_size": int64(512),
	}
	if !maps.Equal(got, want) {
		t.Errorf("got\n%v\nwant\n%v", got, want)
	}
}

func TestEmptyIdentityHasAServiceNameOnly(t *testing.T) {
	if got := parse(t, "{}").Attributes(); !maps.Equal(got, map[string]any{"service.name": "unknown_service"}) {
		t.Errorf("%v", got)
	}
	for _, text := range []string{"", "[]", `{"pid": "x"}`} {
		if _, err := sink.ParseProcessJSON([]byte(text)); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func TestServiceName(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		id := parse(t, text)
		if id.ServiceName != want || id.Resource["service.name"] != "" {
			t.Errorf("%s: %q, resource %v; want %q", text, id.ServiceName, id.Resource, want)
		}
	}
	f(`{"service_name": "a", "resource_attributes": "service.name=b", "executable": "/bin/c"}`, "a")
	f(`{"resource_attributes": "service.name=b%20c", "executable": "/bin/c"}`, "b c")
	f(`{"resource_attributes": "service.name=b,broken", "executable": "/bin/c"}`, "unknown_service:c")
	f(`{"executable": "/usr/bin/python3.11"}`, "unknown_service:python3.11")
	f(`{}`, "unknown_service")
}

// A child inherits its parent's variable: what it says about the process is the parent's.
func TestTheProcessItselfBeatsTheVariable(t *testing.T) {
	got := parse(t, `{"pid": 5, "host": "real", "resource_attributes": "process.pid=4,host.name=chosen,container.id=chosen"}`).Attributes()
	if got["process.pid"] != int64(5) || got["host.name"] != "chosen" || got["container.id"] != "chosen" {
		t.Errorf("%v", got)
	}
}

func TestParseResourceAttributes(t *testing.T) {
	f := func(s string, want map[string]string) {
		t.Helper()
		got, err := sink.ParseResourceAttributes(s)
		if (err == nil) != (want != nil) || !maps.Equal(got, want) {
			t.Errorf("%q: %q, %v; want %q", s, got, err, want)
		}
	}
	f("", map[string]string{})
	f("a=1", map[string]string{"a": "1"})
	f(" a = 1 , b=2,", map[string]string{"a": "1", "b": "2"})
	f("a=x=y", map[string]string{"a": "x=y"})
	f("a=%2C%3D+%20b,k%2C=v", map[string]string{"a": ",=+ b", "k,": "v"})
	f("a=", map[string]string{"a": ""})
	f("a=1,a=2", map[string]string{"a": "2"})
	f("a=1,b", nil) // any error drops the whole
	f("a=1,b=%zz", nil)
	f("a=1,%zz=b", nil)
	f("a=1,=b", nil)
}

func TestRanksAreOfOneLauncher(t *testing.T) {
	f := func(variables, want string) {
		t.Helper()
		id := parse(t, `{"variables": {`+variables+`}}`)
		if got := id.Rank + "/" + id.LocalRank + "/" + id.WorldSize; got != want {
			t.Errorf("%s: %s, want %s", variables, got, want)
		}
	}
	f(``, "//")
	f(`"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"`, "5/1/8")
	f(`"RANK": "5", "SLURM_NTASKS": "2"`, "5//")
	f(`"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4"`, "3/1/4")
	f(`"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_PROCID": "0"`, "3/1/4")
	f(`"PMI_RANK": "2", "PMI_SIZE": "4"`, "2//4")
}

func TestRankThatIsNoNumberStaysText(t *testing.T) {
	if got := parse(t, `{"variables": {"RANK": "a"}}`).Attributes()["heapwire.rank"]; got != "a" {
		t.Errorf("%v", got)
	}
}

func TestProfileIDTellsDumpsApart(t *testing.T) {
	ids := map[[16]byte]string{}
	for _, host := range []string{"a", "ab"} {
		for _, pid := range []int{1, 2} {
			for _, start := range []uint64{1, 2} {
				for _, seq := range []uint64{1, 2} {
					for _, kind := range []string{"host", "cuda"} {
						for _, view := range []string{"live", "peak"} {
							id := sink.ProfileID(host, pid, start, seq, kind, view)
							if id == ([16]byte{}) || id != sink.ProfileID(host, pid, start, seq, kind, view) {
								t.Fatalf("id %x", id)
							}
							what := fmt.Sprint(host, pid, start, seq, kind, view)
							if other, ok := ids[id]; ok {
								t.Errorf("%s and %s have the same id", what, other)
							}
							ids[id] = what
						}
					}
				}
			}
		}
	}
	if sink.ProfileID("h", 1, 1, 1, "ab", "c") == sink.ProfileID("h", 1, 1, 1, "a", "bc") {
		t.Error("the border between kind and view does not count")
	}
	if got := fmt.Sprintf("%x", sink.ProfileID("node7", 4242, 8123456, 3, "host", "live")); got != wantID {
		t.Errorf("id %s, want %s: a changed derivation makes repeats unrecognisable across versions", got, wantID)
	}
}

const wantID = "ea12a6ef00f0e11771a4aea8ee611512"

func TestErrors(t *testing.T) {
	err := fmt.Errorf("sending: %w", sink.Permanent(fmt.Errorf("reading: %w", io.EOF)))
	if !sink.IsPermanent(err) || !errors.Is(err, io.EOF) || !errors.Is(err, sink.ErrPermanent) || err.Error() != "sending: reading: EOF" {
		t.Errorf("%v", err)
	}
	if sink.IsPermanent(io.EOF) || sink.IsPermanent(nil) || sink.Permanent(nil) != nil {
		t.Error("what is not permanent counts as permanent")
	}
	var after *sink.RetryAfterError
	err = fmt.Errorf("sending: %w", &sink.RetryAfterError{Delay: 3 * time.Second, Err: io.EOF})
	if !errors.As(err, &after) || after.Delay != 3*time.Second || !errors.Is(err, io.EOF) || sink.IsPermanent(err) || err.Error() != "sending: EOF (retry after 3s)" {
		t.Errorf("%v", err)
	}
}
