// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/heapwire/heapwire/exporter/sink"
	"github.com/heapwire/heapwire/shim/test/pythons"
)

var errNoContext = errors.New("no process context")

// readContext reads a process's context as OTEP 4719 has its readers do it.
func readContext(pid int) (map[string]any, error) {
	mapsFile, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	var at []int64
	for line := range strings.Lines(string(mapsFile)) {
		fields := strings.Fields(line)
		if len(fields) < 6 {
			continue
		}
		for _, name := range []string{"[anon_shmem:OTEL_CTX]", "[anon:OTEL_CTX]", "/memfd:OTEL_CTX"} {
			if strings.HasPrefix(fields[5], name) {
				start, _, _ := strings.Cut(fields[0], "-")
				n, err := strconv.ParseInt(start, 16, 64)
				if err != nil {
					return nil, err
				}
				at = append(at, n)
			}
		}
	}
	if len(at) == 0 {
		return nil, errNoContext
	}
	if len(at) > 1 {
		return nil, fmt.Errorf("%d contexts", len(at))
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return nil, err
	}
	defer mem.Close()
	header := make([]byte, 32)
	if _, err := mem.ReadAt(header, at[0]); err != nil {
		return nil, err
	}
	if version := binary.LittleEndian.Uint32(header[8:]); string(header[:8]) != "OTEL_CTX" || version != 2 {
		return nil, fmt.Errorf("signature %q, version %d", header[:8], version)
	}
	if binary.LittleEndian.Uint64(header[16:]) == 0 {
		return nil, errors.New("published at 0: not ready")
	}
	payload := make([]byte, binary.LittleEndian.Uint32(header[12:]))
	if _, err := mem.ReadAt(payload, int64(binary.LittleEndian.Uint64(header[24:]))); err != nil {
		return nil, err
	}

	// ProcessContext has one field that is used: 1, the resource.
	number, kind, n := protowire.ConsumeTag(payload)
	if n < 0 || number != 1 || kind != protowire.BytesType {
		return nil, fmt.Errorf("field %d of type %d", number, kind)
	}
	message, m := protowire.ConsumeBytes(payload[n:])
	if m < 0 || n+m != len(payload) {
		return nil, fmt.Errorf("%d of %d bytes are the resource", m, len(payload)-n)
	}
	var resource resourcepb.Resource
	if err := proto.Unmarshal(message, &resource); err != nil {
		return nil, err
	}
	if len(resource.ProtoReflect().GetUnknown()) != 0 || resource.DroppedAttributesCount != 0 {
		return nil, fmt.Errorf("unknown fields, or %d attributes dropped", resource.DroppedAttributesCount)
	}
	attrs := map[string]any{}
	for _, kv := range resource.Attributes {
		if _, twice := attrs[kv.Key]; twice {
			return nil, fmt.Errorf("%s is there twice", kv.Key)
		}
		switch v := kv.Value.Value.(type) {
		case *commonpb.AnyValue_StringValue:
			attrs[kv.Key] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			attrs[kv.Key] = v.IntValue
		default:
			return nil, fmt.Errorf("%s is a %T", kv.Key, v)
		}
	}
	return attrs, nil
}

// A parent that forks two children, and one of them once more, which waits. Each says its pid.
const family = `
import os, sys, time
keep = [bytearray(100000) for _ in range(20)]
os.environ["RANK"] = "99"
os.environ["OTEL_SERVICE_NAME"] = "later"
def wait():
    os.write(1, b"%d\n" % os.getpid())  # in one piece
    sys.stdin.read()
    os._exit(0)
for depth in (1, 2):
    if os.fork() == 0:
        if depth == 2 and os.fork():
            os.wait()
            os._exit(0)
        wait()
os.write(1, b"%d\n" % os.getpid())  # in one piece
sys.stdin.read()
os.wait()
os.wait()
`

// inFamily runs that program and gives its processes' ids, the parent's too, while they wait.
func inFamily(t *testing.T, python string, env []string, use func(spool string, parent int, all []int)) {
	t.Helper()
	spool := filepath.Join(t.TempDir(), "spool")
	cmd := exec.Command(python, "-W", "ignore", "-c", family)
	cmd.Env = pythons.CleanEnv(append([]string{"LD_PRELOAD=" + library, "HEAPWIRE_SPOOL=" + spool, "HEAPWIRE_INTERVAL=100ms", "HEAPWIRE_SAMPLE_BYTES=64KiB"}, env...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var all []int
	lines := bufio.NewReader(stdout)
	for range 3 {
		line, err := lines.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Errorf("%q: %v", line, err)
		}
		all = append(all, pid)
	}
	use(spool, cmd.Process.Pid, all)
	stdin.Close()
	if err := cmd.Wait(); err != nil || stderr.String() != "" {
		t.Errorf("%v: %s", err, &stderr)
	}
}

func TestTheProcessContextIsWhatTheExporterSends(t *testing.T) {
	env := []string{
		"HEAPWIRE_OTEL_CTX=1", "RANK=3", "LOCAL_RANK=1", "WORLD_SIZE=8", "SLURM_PROCID=0",
		"OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=prod, team=r%2Cl%20%C3%A4 ,service.name=other,process.pid=1,team=last,k=",
	}
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		for _, service := range []string{"", "trainer ä"} {
			inFamily(t, p.Path, append(env, "OTEL_SERVICE_NAME="+service), func(spool string, parent int, all []int) {
				files := waitFor(t, filepath.Join(spool, "*-"+strconv.Itoa(parent)+"-*", "process.json"))
				text, err := os.ReadFile(files[0])
				if err != nil {
					t.Fatal(err)
				}
				process, err := sink.ParseProcessJSON(text)
				if err != nil {
					t.Fatal(err)
				}
				want := process.Identity().Attributes()
				// What a reader outside knows by itself, and better.
				for _, key := range []string{"process.parent_pid", "process.creation.time", "container.id"} {
					delete(want, key)
				}
				if name := want["service.name"]; service != "" && name != service || service == "" && name != "other" {
					t.Errorf("service.name is %v", name)
				}
				for _, pid := range all {
					want["process.pid"] = int64(pid)
					got, err := readContext(pid)
					if err != nil {
						t.Errorf("process %d of %d: %v", pid, parent, err)
					} else if !maps.Equal(got, want) {
						t.Errorf("process %d of %d:\n%v, want\n%v", pid, parent, got, want)
					}
				}
			})
		}
	})
}

func waitFor(t *testing.T, pattern string) []string {
	t.Helper()
	deadline := time.Now().Add(limit)
	for time.Now().Before(deadline) {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s does not come", pattern)
	return nil
}

func TestThereIsNoProcessContextUnlessAskedFor(t *testing.T) {
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		for _, env := range [][]string{nil, {"HEAPWIRE_OTEL_CTX=off"}, {"HEAPWIRE_OTEL_CTX=on", "HEAPWIRE=off"}, {"HEAPWIRE_OTEL_CTX=on", "HEAPWIRE_TARGET=none"}} {
			inFamily(t, p.Path, env, func(_ string, parent int, all []int) {
				for _, pid := range all {
					if got, err := readContext(pid); !errors.Is(err, errNoContext) {
						t.Errorf("%v: process %d of %d: %v, %v", env, pid, parent, got, err)
					}
				}
			})
		}
	})
}

// A memory file has a size, and a limit on sizes would be met with a signal.
func TestAFileSizeLimitCostsAtMostTheProcessContext(t *testing.T) {
	program := compileC(t, "programs/ways_out.c")
	r := under(t, library, []string{"HEAPWIRE_TARGET=all", "HEAPWIRE_OTEL_CTX=on", "HEAPWIRE_EXIT_DUMP=off"}, "bash", "-c", "ulimit -f 0; exec "+program+" exit")
	if r.code != 5 || strings.Count(r.stderr, "\n") > 1 || r.stderr != "" && !strings.Contains(r.stderr, "no process context") {
		t.Errorf("exit status %d, stderr %q", r.code, r.stderr)
	}
}
