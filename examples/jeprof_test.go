// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"bufio"
	"bytes"
	"context"
	"math"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/shim/test/pythons"
)

// jemalloc's own tool reads our dump as it is, and comes to the same totals as our converter: overall, and for each
// native function that leaks.
func TestJeprofComesToTheSameTotals(t *testing.T) {
	t.Parallel()
	jeprof, err := exec.LookPath("jeprof")
	if err != nil {
		t.Skip("jeprof is not installed (Debian: libjemalloc-dev)")
	}
	py := onePython(t)
	if !py.Headers {
		t.Skipf("no Python.h for %s", py)
	}
	spool := filepath.Join(t.TempDir(), "spool")
	// What is sampled of small objects stands in a section of ours, which jeprof does not know.
	off := []string{"HEAPWIRE_PYTHON_OBJECTS=off"}
	j := startPreloaded(t, spool, off, py.Path, filepath.Join(here, "leak_native/leak_native.py"), "--blocks", "256", "--module", buildExtension(t, py))
	j.succeed()
	dumps, err := filepath.Glob(filepath.Join(spool, "*", "*.exit.heap"))
	if err != nil || len(dumps) != 1 {
		t.Fatalf("dumps %v (%v), want one\n%s", dumps, err, j.report())
	}

	out := filepath.Join(t.TempDir(), "dump.pb.gz")
	if text, err := exec.Command(heapwire, "convert", dumps[0], "-o", out).CombinedOutput(); err != nil {
		t.Fatalf("converting: %v\n%s", err, text)
	}
	ours, err := readProfile(out)
	if err != nil {
		t.Fatal(err)
	}
	total, functions := runJeprof(t, jeprof, py.Path, dumps[0])

	same := func(what string, theirs, own int64) {
		t.Helper()
		if theirs == 0 || math.Abs(float64(own-theirs)) > 0.01*float64(theirs) {
			t.Errorf("%s: jeprof %d bytes, ours %d", what, theirs, own)
		} else {
			t.Logf("%s: jeprof %d bytes, ours %d", what, theirs, own)
		}
	}
	same("total", total, live(t, ours, func(*profile.Sample) bool { return true }))
	for _, f := range []string{"leak_without_lock", "leak_with_lock", "leak_on_own_thread"} {
		same(f, functions[f], live(t, ours, func(s *profile.Sample) bool { return calls(s, f) }))
	}
}

// runJeprof returns the total and the cumulative bytes of each function.
func runJeprof(t *testing.T, jeprof, program, dump string) (int64, map[string]int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// Without addr2line, which takes minutes on debug information, it names functions from nm; totals are the same.
	// It takes either all its tools by name or none.
	tools := "--tools=addr2line:false"
	for _, tool := range []string{"nm", "objdump", "c++filt"} {
		tools += "," + tool + ":" + tool
	}
	cmd := exec.CommandContext(ctx, jeprof, "--text", "--show_bytes", tools, program, dump)
	cmd.Env = pythons.CleanEnv()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("jeprof: %v\n%s%s", err, out, stderr.Bytes())
	}
	var total int64
	functions := map[string]int64{}
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) >= 3 && fields[0] == "Total:" {
			total, _ = strconv.ParseInt(fields[1], 10, 64)
		}
		// flat flat% sum% cumulative cumulative% name
		if len(fields) >= 6 && strings.HasSuffix(fields[1], "%") {
			if n, err := strconv.ParseInt(fields[3], 10, 64); err == nil {
				functions[fields[5]] = n
			}
		}
	}
	if total == 0 {
		t.Fatalf("jeprof printed no total:\n%s", out)
	}
	return total, functions
}
