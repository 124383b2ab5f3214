// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/heapwire/heapwire/convert/torchmem/snapgen"
	"github.com/heapwire/heapwire/exporter/otlp/otlptest"
)

func snapshotBytes(t *testing.T, o snapgen.Options) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := snapgen.Generate(o).Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func put(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func receiver(t *testing.T) *otlptest.Receiver {
	t.Helper()
	r, err := otlptest.Start(context.Background(), otlptest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// arrived gives what a receiver has of snapshots: the views by rank and pid, "rank pid device view"; the profile ids by view;
// and the errors, "rank pid device profile-id".
func arrived(r *otlptest.Receiver) (views []string, ids map[string]string, ooms []string) {
	ids = map[string]string{}
	for _, pd := range r.Received() {
		d := pd.Dictionary()
		for _, rp := range pd.ResourceProfiles().All() {
			a := rp.Resource().Attributes().AsRaw()
			for _, sp := range rp.ScopeProfiles().All() {
				for _, p := range sp.Profiles().All() {
					labels := map[string]string{}
					for _, i := range p.AttributeIndices().All() {
						kv := d.AttributeTable().At(int(i))
						labels[d.StringTable().At(int(kv.KeyStrindex()))] = kv.Value().AsString()
					}
					if labels["memory_kind"] == "host" || !strings.HasSuffix(d.StringTable().At(int(p.SampleType().TypeStrindex())), "_space") {
						continue
					}
					view := fmt.Sprint(a["heapwire.rank"], " ", a["process.pid"], " ", labels["device"], " ", labels["view"])
					id := p.ProfileID()
					views = append(views, view)
					ids[hex.EncodeToString(id[:])] = view
				}
			}
		}
	}
	for _, ld := range r.Logs() {
		for _, rl := range ld.ResourceLogs().All() {
			a := rl.Resource().Attributes().AsRaw()
			for _, sl := range rl.ScopeLogs().All() {
				for _, l := range sl.LogRecords().All() {
					if l.EventName() == "exception" {
						at := l.Attributes().AsRaw()
						ooms = append(ooms, fmt.Sprint(a["heapwire.rank"], " ", a["process.pid"], " ", at["device"], " ", at["profile_id"]))
					}
				}
			}
		}
	}
	slices.Sort(views)
	return views, ids, ooms
}

// A folder as verl and torch_npu leave it.
func TestPushOfAFolderOfSnapshots(t *testing.T) {
	t.Parallel()
	r := receiver(t)
	c := newCall(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+r.HTTP, "OTEL_SERVICE_NAME=trainer")
	oom, plain := snapshotBytes(t, snapgen.Options{OOM: true, Capacity: 8 << 30}), snapshotBytes(t, snapgen.Options{Whole: true})
	dir := filepath.Join(c.dir, "snapshots")
	put(t, filepath.Join(dir, "step4/torch_memory_rank2_pid77.pickle"), plain)
	put(t, filepath.Join(dir, "oom_20260908-101112-123456/torch_memory_oom_rank2_pid77.pickle"), oom)
	put(t, filepath.Join(dir, "steps5-6/torch_memory_rank2_pid77.pickle"), oom) // the same error, in the window after it
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "oom_snapshot_78_20260908101112.pickle.zst"), z.EncodeAll(snapshotBytes(t, snapgen.Options{Form: snapgen.FormNPU, OOM: true, Capacity: 8 << 30}), nil))
	put(t, filepath.Join(dir, "notes.txt"), []byte("no snapshot"))
	put(t, filepath.Join(dir, "000001.interval.heap"), dump(t, 2))
	if status := c.do(t, "push", dir); status != 0 {
		t.Fatalf("status %d: %s", status, &c.stderr)
	}
	views, ids, ooms := arrived(r)
	for _, want := range []string{"2 77 cuda:0 live", "2 77 cuda:0 oom", "2 77 cuda:0 peak", "<nil> 78 npu:7 oom", "<nil> 78 npu:7 live"} {
		if !slices.Contains(views, want) {
			t.Errorf("no profile %q among %q", want, views)
		}
	}
	if len(ids) != len(views) {
		t.Errorf("%d profiles with %d ids", len(views), len(ids))
	}
	if len(ooms) != 2 {
		t.Fatalf("errors %q, want the one of each process", ooms)
	}
	for _, o := range ooms {
		who, id := o[:strings.LastIndexByte(o, ' ')], o[strings.LastIndexByte(o, ' ')+1:]
		if ids[id] != who+" oom" {
			t.Errorf("the error of %s names profile %s, which is %q", who, id, ids[id])
		}
	}
	var steps []int64
	gauges := map[string]bool{}
	for _, md := range r.Metrics() {
		for _, rm := range md.ResourceMetrics().All() {
			for _, sm := range rm.ScopeMetrics().All() {
				for _, m := range sm.Metrics().All() {
					gauges[m.Name()] = true
					if m.Name() == "heapwire.step" {
						steps = append(steps, m.Gauge().DataPoints().At(0).IntValue())
					}
				}
			}
		}
	}
	slices.Sort(steps)
	if !slices.Equal(steps, []int64{4, 6}) || !gauges["heapwire.device.memory.reserved"] || !gauges["heapwire.device.memory.window.ooms"] {
		t.Errorf("steps %v, gauges %v", steps, gauges)
	}
	// Again: the same ids, so that who has them knows.
	if status := c.do(t, "push", dir); status != 0 {
		t.Fatal(&c.stderr)
	}
	if again, idsAgain, _ := arrived(r); len(again) != 2*len(views) || len(idsAgain) != len(ids) {
		t.Errorf("%d profiles and %d ids after the second push, %d and %d before", len(again), len(idsAgain), len(views), len(ids))
	}

	empty := filepath.Join(c.dir, "empty")
	put(t, filepath.Join(empty, "notes.txt"), nil)
	put(t, filepath.Join(dir, "broken.pickle"), []byte("\x80\x04cos\nsystem\n."))
	if status := c.do(t, "push", empty, filepath.Join(dir, "broken.pickle"), filepath.Join(c.dir, "nowhere")); status != 1 {
		t.Errorf("status %d", status)
	}
	c.says(t, "empty: holds no heap dump", "broken.pickle: pickle: byte 2: ", "nowhere: no such file", "0 delivered, 3 failed")
}

// verl writes while the job runs, under the final name.
const verlJob = `
folder=$SNAPSHOTS/step4
mkdir -p "$folder"
cat "$SOURCE" > "$folder/torch_memory_rank2_pid$$.pickle"
mkdir -p "$SNAPSHOTS/oom_20260908-101112-123456"
cat "$OOM" > "$SNAPSHOTS/oom_20260908-101112-123456/torch_memory_oom_rank2_pid$$.pickle"
echo $$
`

func TestRunDeliversTheSnapshotsOfOthers(t *testing.T) {
	t.Parallel()
	r := receiver(t)
	snapshots, source := filepath.Join(t.TempDir(), "not", "there", "yet"), filepath.Join(t.TempDir(), "source")
	put(t, source, snapshotBytes(t, snapgen.Options{Whole: true}))
	put(t, source+".oom", snapshotBytes(t, snapgen.Options{OOM: true, Capacity: 8 << 30}))
	c := newCall(t, "HEAPWIRE_LIB="+library(t), "OTEL_EXPORTER_OTLP_ENDPOINT="+r.HTTP, "OTEL_SERVICE_NAME=trainer",
		"SNAPSHOTS="+snapshots, "SOURCE="+source, "OOM="+source+".oom")
	if status := c.do(t, "run", "--snapshots", snapshots, "--out", "out", "--drain-timeout", "60s", "--", "sh", "-c", verlJob); status != 0 {
		t.Fatalf("status %d: %s", status, &c.stderr)
	}
	pid := strings.TrimSpace(c.stdout.String())
	views, ids, ooms := arrived(r)
	for _, want := range []string{"live", "peak", "reserved", "oom"} {
		if !slices.Contains(views, "2 "+pid+" cuda:0 "+want) {
			t.Errorf("no profile of %s among %q\n%s", want, views, &c.stderr)
		}
	}
	if len(ooms) != 1 || !strings.HasPrefix(ooms[0], "2 "+pid+" cuda:0 ") || ids[strings.Fields(ooms[0])[3]] != "2 "+pid+" cuda:0 oom" {
		t.Errorf("errors %q", ooms)
	}
	c.says(t, "from the snapshots in "+snapshots+": 2", "out of memory on cuda:0: ")
	summary, err := os.ReadFile(filepath.Join(c.dir, "out", "summary.txt"))
	if err != nil || !strings.Contains(string(summary), "out of memory on cuda:0: ") {
		t.Errorf("%v, summary %q", err, summary)
	}
	if found, _ := filepath.Glob(filepath.Join(c.dir, "out", "rank2-pid"+pid, "step4.*.pb.gz")); len(found) < 5 {
		t.Errorf("files of the step: %q", found)
	}
	if found, _ := filepath.Glob(filepath.Join(snapshots, "*", "*.pickle")); len(found) != 2 {
		t.Errorf("the snapshots are %q", found)
	}
	// The next run of the job delivers nothing of it again.
	before := len(views)
	if status := c.do(t, "run", "--snapshots", snapshots, "--out", "out", "--", "true"); status != 0 {
		t.Fatal(&c.stderr)
	}
	if views, _, ooms := arrived(r); len(views) != before || len(ooms) != 1 {
		t.Errorf("%d profiles and %d errors after another run, %d and 1 before", len(views), len(ooms), before)
	}
	if status := c.do(t, "run", "--snapshots", source, "--", "true"); status != 2 {
		t.Errorf("a file as folder: status %d", status)
	}
	c.says(t, "source: is a file")
}

func TestConvertReadsTheJSONBesideASnapshot(t *testing.T) {
	t.Parallel()
	c := newCall(t)
	file := filepath.Join(c.dir, "000004.oom.cuda.pickle")
	put(t, file, snapshotBytes(t, snapgen.Options{OOM: true, Capacity: 8 << 30}))
	side := filepath.Join(c.dir, "000004.oom.cuda.json")
	for text, want := range map[string]string{
		`{"reason": "oom", "device": "cuda:0", "total_bytes": 85899345920, "limit_bytes": 8589934592, "step": 12, "rank": 3}`: "taken: oom, step 12, rank 3\n",
		`{"reason": "api", "device_kind": "npu", "step": "x"}`:                                                                "\nnpu:0: ",
	} {
		put(t, side, []byte(text))
		if status := c.do(t, "convert", "--format", "text", file); status != 0 || !strings.Contains(c.stdout.String(), want) {
			t.Errorf("status %d, no %q in\n%s\n%s", status, want, &c.stdout, &c.stderr)
		}
		if strings.Contains(text, "limit") && !strings.Contains(c.stdout.String(), "the process may use 8.0 GiB of the device's 80.0 GiB") {
			t.Errorf("no limit:\n%s", &c.stdout)
		}
		if odd := strings.Contains(c.stderr.String(), `000004.oom.cuda.json: key "step": `); odd != strings.Contains(text, `"x"`) {
			t.Errorf("stderr %q", &c.stderr)
		}
	}
}

func TestProgressIsShownOfSlowFilesOnly(t *testing.T) {
	var terminal bytes.Buffer
	shown := func(began time.Time, p *progress) string {
		terminal.Reset()
		w := p.watch("/x/big\x1b[2J.pickle", strings.NewReader(strings.Repeat("x", 4<<20)), 8<<20)
		w.began = began
		if n, err := io.Copy(io.Discard, struct{ io.Reader }{w}); n != 4<<20 || err != nil {
			t.Fatal(n, err)
		}
		w.Close()
		return terminal.String()
	}
	long := time.Now().Add(-2 * slow)
	got := shown(long, &progress{&terminal})
	for _, want := range []string{"big [2J.pickle", "%", "MiB", "/s"} {
		if !strings.Contains(got, want) {
			t.Errorf("the bar lacks %q: %q", want, got)
		}
	}
	if got := shown(time.Now().Add(time.Hour), &progress{&terminal}); got != "" {
		t.Errorf("of a quick file: %q", got)
	}
	if got := shown(long, newProgress(&terminal)); got != "" {
		t.Errorf("on no terminal: %q", got)
	}
}
