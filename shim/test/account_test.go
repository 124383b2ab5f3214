// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/heapwire/heapwire/convert/jemalloc"
	"github.com/heapwire/heapwire/shim/test/pythons"
)

const accountMiB = 1 << 20

// accounted are programs and the part of resident memory that each has much of, in bytes at least. A forked child is the last
// program's: its dump, and not its parent's, is looked at.
var accounted = []struct {
	name, program, part string
	least               int64
	child               bool
}{
	{"nothing", "", "part_files", 4 * accountMiB, false},
	{"big buffers", "keep = [bytearray(b'x') * (8 << 20) for _ in range(8)]", "part_allocator", 64 * accountMiB, false},
	{"a buffer of which a part is touched", "keep = bytearray(64 << 20); keep[:16 << 20] = b'x' * (16 << 20)", "part_allocator", 16 * accountMiB, false},
	{"small objects", "keep = [object() for _ in range(1500000)]", "part_python_arenas", 20 * accountMiB, false},
	{"small objects come and go", "keep = [[str(i) for i in range(200000)] for _ in range(4)]; del keep[::2]", "part_python_arenas", 10 * accountMiB, false},
	{"mmap", "import mmap; keep = mmap.mmap(-1, 48 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); keep.write(b'x' * (48 << 20))",
		"part_other", 48 * accountMiB, false},
	{"mmap of which nothing is touched", "import mmap; keep = mmap.mmap(-1, 1 << 34, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)",
		"part_files", 4 * accountMiB, false},
	{"shared memory", "import mmap; keep = mmap.mmap(-1, 32 << 20); keep.write(b'x' * (32 << 20))", "part_shared", 32 * accountMiB, false},
	{"a mapped file", `
import mmap, tempfile
f = tempfile.TemporaryFile()
f.write(b"x" * (24 << 20)); f.flush()
keep = mmap.mmap(f.fileno(), 0)
sum(keep[i] for i in range(0, len(keep), 4096))`, "part_files", 28 * accountMiB, false},
	{"threads", `
import threading
threading.stack_size(16 << 20)
ready, end = threading.Barrier(13), threading.Event()
def deep(n):
    if n: return deep(n - 1)
    ready.wait(); end.wait()
threads = [threading.Thread(target=deep, args=(100,)) for _ in range(12)]
for t in threads: t.start()
ready.wait()
dump()
end.set()
for t in threads: t.join()`, "part_stacks", 12 * 16 << 10, false},
	{"threads that allocate", `
import threading
keep = []
def work():
    for i in range(200): keep.append(b'x' * (100000 + i))
threads = [threading.Thread(target=work) for _ in range(6)]
for t in threads: t.start()
for t in threads: t.join()`, "part_allocator", 100 * accountMiB, false},
	{"a forked child", `
inherited = [b"x" * 1000 for _ in range(30000)]
pid = os.fork()
if pid == 0:
    keep = [bytes(1000) for _ in range(20000)]
    dump()
    os._exit(0)
os.waitpid(pid, 0)`, "part_allocator", 20 * accountMiB, true},
}

// dump asks for a dump at once: the exit dump comes after threads have ended.
const dumpNow = `
import ctypes, os
dump = ctypes.CDLL(None).heapwire_dump
`

func TestPartsAddUpToResidentMemory(t *testing.T) {
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		for _, a := range accounted {
			program := dumpNow + a.program
			if !strings.Contains(a.program, "dump()") {
				program += "\ndump()"
			}
			r := under(t, library, []string{"HEAPWIRE_EXIT_DUMP=off", "HEAPWIRE_JUMP=off", "HEAPWIRE_PRESSURE=off", "HEAPWIRE_PSI=0"}, p.Path, "-W", "ignore", "-c", program)
			if r.code != 0 || len(r.dumps) != 1 {
				t.Errorf("%s: exit status %d, dumps %v\n%s", a.name, r.code, r.dumps, r.stderr)
				continue
			}
			figure := func(key string) int64 {
				n, err := strconv.ParseInt(r.meta(t, r.dumps[0], key), 10, 64)
				if err != nil {
					t.Errorf("%s: %s: %v", a.name, key, err)
				}
				return n
			}
			rss, sum := figure("rss"), figure("part_sum")
			if off := rss - sum; off > rss*3/100 || -off > rss*3/100 {
				t.Errorf("%s: the parts add up to %d of %d bytes", a.name, sum, rss)
			}
			if n := figure(a.part); n < a.least {
				t.Errorf("%s: %s is %d, want %d at least", a.name, a.part, n, a.least)
			}
			if a.part == "part_python_arenas" && figure("python_block_bytes") < a.least*3/4 {
				t.Errorf("%s: blocks in use are %d", a.name, figure("python_block_bytes"))
			}
			if a.name == "threads" && figure("thread_stacks") < 13 {
				t.Errorf("%d stacks", figure("thread_stacks"))
			}
			if (r.meta(t, r.dumps[0], "inherited_bytes") != "") != a.child {
				t.Errorf("%s: not the process that was meant", a.name)
			}
			if !a.child && figure("mappings_lost") != 0 {
				t.Errorf("%s: mappings that found no room", a.name)
			}
			t.Logf("%-36s %8d KiB, parts %+.2f %%, %s %d KiB", a.name, rss>>10, 100*float64(sum-rss)/float64(rss), a.part, figure(a.part)>>10)
		}
	})
}

// With HEAPWIRE_SAMPLE_BYTES=auto the interval moves while little lives; what is live from then on is estimated as ever.
func TestTheSamplingIntervalFindsItsPlace(t *testing.T) {
	const program = seen + dumpNow + `
end = time.monotonic() + 60
while not glob.glob(os.environ["HEAPWIRE_SPOOL"] + "/*/*.interval.heap"):
    for i in range(200): bytearray(b"x" * 500000)
    assert time.monotonic() < end, "no change"
# The change comes right behind the dump; the next dump is taken by the same thread, after it.
keep = []
dump()
for i in range(300): keep.append(bytes(4 << 20)) # not touched
dump()
`
	p := newestPython(t)
	r := under(t, library, []string{"HEAPWIRE_SAMPLE_BYTES=auto", "HEAPWIRE_EXIT_DUMP=off", "HEAPWIRE_JUMP=off", "HEAPWIRE_PRESSURE=off", "HEAPWIRE_PSI=0",
		"HEAPWIRE_PYTHON_OBJECTS=off"}, p.Path, "-c", program)
	if r.code != 0 || len(r.dumps) < 3 {
		t.Fatalf("exit status %d, dumps %v\n%s", r.code, r.dumps, r.stderr)
	}
	first, last := r.dumps[0], r.dumps[len(r.dumps)-1]
	if why := r.meta(t, first, "trigger"); !strings.HasPrefix(why, "sampling interval becomes ") {
		t.Errorf("the dump before the change is set off by %q", why)
	}
	before, _ := strconv.Atoi(r.meta(t, first, "sample_bytes"))
	after, _ := strconv.Atoi(r.meta(t, last, "sample_bytes"))
	if before != 512<<10 || after <= before || r.meta(t, last, "sample_changes") == "" || r.meta(t, last, "resampled_bytes") == "" {
		t.Errorf("sample_bytes %d, then %d after %q changes", before, after, r.meta(t, last, "sample_changes"))
	}
	text, err := os.ReadFile(filepath.Join(r.spool, last))
	if err != nil {
		t.Fatal(err)
	}
	dump, err := jemalloc.Parse(bytes.NewReader(text), jemalloc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, s := range dump.Profile.Sample {
		sum += float64(s.Value[len(s.Value)-1])
	}
	// Each of the 300 is of the size class of 5 MiB and sampled with the chance p: five standard deviations.
	const block = 5 << 20
	truth, p1 := 300.0*block, 1-math.Exp(-block/float64(after))
	if off := 5 * block * math.Sqrt(300*(1-p1)/p1); math.Abs(sum-truth) > off {
		t.Errorf("%.0f bytes live, want %.0f ± %.0f", sum, truth, off)
	}
	t.Logf("%d -> %d, %.1f MB of %.1f MB", before, after, sum/1e6, truth/1e6)
}

// newestPython is the newest interpreter that Python frames are known of.
func newestPython(t *testing.T) pythons.Python {
	t.Helper()
	all, err := pythons.Find()
	if err != nil {
		t.Fatal(err)
	}
	var best pythons.Python
	for _, p := range all {
		if p.Supported() && p.Minor > best.Minor {
			best = p
		}
	}
	if best.Path == "" {
		t.Skip("no supported interpreter")
	}
	return best
}
