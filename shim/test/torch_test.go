// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heapwire/heapwire/shim/test/pythons"
)

const standin = "../python/test/standin"

// capture is the environment that heapwire run sets, with the stand-in for torch on the path.
func capture(t *testing.T, more ...string) []string {
	t.Helper()
	var path []string
	for _, folder := range []string{filepath.Join(filepath.Dir(library), "heapwire-python"), standin} {
		abs, err := filepath.Abs(folder)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(abs); err != nil {
			t.Fatalf("%v: run make build", err)
		}
		path = append(path, abs)
	}
	return append([]string{"PYTHONPATH=" + strings.Join(path, ":"), "PYTHONDONTWRITEBYTECODE=1"}, more...)
}

// snapshots gives what the JSON of each snapshot says, by process and in order; each has its pickle.
func (r result) snapshots(t *testing.T) map[string][]map[string]any {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(r.spool, "*", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]map[string]any{}
	for _, path := range found {
		if filepath.Base(path) == "process.json" {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var figures map[string]any
		if err := json.Unmarshal(text, &figures); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		figures["file"] = filepath.Base(path)
		for _, file := range []string{path, strings.TrimSuffix(path, ".json") + ".pickle"} {
			if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
				t.Errorf("%s: %v, %v", file, info, err)
			}
		}
		process := filepath.Base(filepath.Dir(path))
		all[process] = append(all[process], figures)
	}
	if hidden, _ := filepath.Glob(filepath.Join(r.spool, "*", ".*.tmp")); len(hidden) > 0 {
		t.Errorf("left behind: %v", hidden)
	}
	return all
}

func only(t *testing.T, all map[string][]map[string]any) []map[string]any {
	t.Helper()
	for _, of := range all {
		if len(all) == 1 {
			return of
		}
	}
	t.Fatalf("snapshots of %d processes, want 1", len(all))
	return nil
}

func files(of []map[string]any) (names []string) {
	for _, figures := range of {
		names = append(names, figures["file"].(string))
	}
	return names
}

// The package's own tests: a stand-in for torch, a folder in place of the library's.
func TestThePythonPackage(t *testing.T) {
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, p.Path, "-B", "-m", "unittest", "test_capture", "test_guard", "test_start")
		cmd.Dir = "../python/test"
		cmd.Env = pythons.CleanEnv()
		cmd.WaitDelay = time.Second
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			t.Errorf("%v\n%s", err, &out)
		}
	})
}

func TestOutOfDeviceMemoryLeavesASnapshot(t *testing.T) {
	const program = `
import torch, heapwire
held = torch.empty(900 << 20)
heapwire.step()
heapwire.dump("before")
def grow(n):
    return torch.empty(n)
for n in (200 << 20, 201 << 20, 202 << 20):
    try:
        grow(n)
    except torch.OutOfMemoryError as e:
        print(e)
assert heapwire.status()["errors"] == [], heapwire.status()
`
	said := "CUDA out of memory. Tried to allocate 209715200 bytes\nCUDA out of memory. Tried to allocate 210763776 bytes\n" +
		"CUDA out of memory. Tried to allocate 211812352 bytes\n"
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		r := under(t, library, capture(t, "HEAPWIRE_INTERVAL=0", everything, "RANK=2"), p.Path, "-c", program)
		if r.code != 0 || r.stdout != said || r.stderr != "" {
			t.Fatalf("exit status %d, stdout %q, stderr %s", r.code, r.stdout, r.stderr)
		}
		got := only(t, r.snapshots(t))
		// One sequence for dumps and snapshots. The last of the refusals has its snapshot when the program ends.
		if want := []string{"000002.oom.cuda.json", "000003.oom.cuda.json"}; !slices.Equal(files(got), want) {
			t.Fatalf("%v, want %v", files(got), want)
		}
		if len(r.dumps) != 2 || filepath.Base(r.dumps[0]) != "000001.api.heap" || filepath.Base(r.dumps[1]) != "000004.exit.heap" {
			t.Errorf("dumps %v", r.dumps)
		}
		if r.meta(t, r.dumps[0], "trigger") != "before" || r.meta(t, r.dumps[0], "step") != "1" {
			t.Errorf("the dump's trigger is %q, its step %q", r.meta(t, r.dumps[0], "trigger"), r.meta(t, r.dumps[0], "step"))
		}
		for i, requested := range []float64{200 << 20, 202 << 20} {
			if got[i]["requested_bytes"] != requested || got[i]["rank"] != 2.0 || got[i]["step"] != 1.0 || got[i]["after_unwinding"] != map[int]any{0: nil, 1: true}[i] {
				t.Errorf("snapshot %d says %v", i, got[i])
			}
			stack := got[i]["python_stack"].([]any)
			if !slices.ContainsFunc(stack, func(line any) bool { return strings.HasPrefix(line.(string), "grow ") }) {
				t.Errorf("snapshot %d has the stack %v", i, stack)
			}
		}
	})
}

// Workers of every kind: each its own process folder, and nobody's refusal lost.
func TestWorkersLeaveSnapshotsOfTheirOwn(t *testing.T) {
	const script = `
import multiprocessing, os, sys, torch, heapwire

def work(rank):
    os.environ["RANK"] = str(rank)
    held = torch.empty(900 << 20)
    optimizer = torch.optim.SGD()
    for _ in range(2):
        optimizer.step()
        for n in (200 << 20, (300 + rank) << 20):
            try:
                torch.empty(n)
            except torch.OutOfMemoryError:
                pass
    assert heapwire.status()["errors"] == [], heapwire.status()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    workers = [context.Process(target=work, args=(rank,)) for rank in (1, 2)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    print([w.exitcode for w in workers], torch.counts)
`
	file := filepath.Join(t.TempDir(), "workers.py")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{"fork", "spawn", "forkserver"} {
		t.Run(method, func(t *testing.T) {
			eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
				r := under(t, library, capture(t, "HEAPWIRE_INTERVAL=0", "HEAPWIRE_TORCH_WINDOW_STEPS=2"), p.Path, file, method)
				if want := "[0, 0] {'initialised': [], 'recorded': [], 'observers': 0}\n"; r.code != 0 || r.stdout != want {
					t.Fatalf("exit status %d, stdout %q, stderr %s", r.code, r.stdout, r.stderr)
				}
				all := r.snapshots(t)
				var ranks []float64
				for process, got := range all {
					var reasons []string
					for _, figures := range got {
						reasons = append(reasons, figures["reason"].(string))
					}
					// The first refusal, the window, and the last refusal at the worker's end.
					if !slices.Equal(reasons, []string{"oom", "window", "oom"}) {
						t.Errorf("%s: %v", process, files(got))
						continue
					}
					rank := got[0]["rank"].(float64)
					ranks = append(ranks, rank)
					if last := got[2]; last["requested_bytes"] != (300+rank)*(1<<20)+float64(int(rank)%2)*(1<<20) || last["oom_count"] != 4.0 || last["skipped"] != 2.0 {
						t.Errorf("rank %v: %v", rank, last)
					}
					if got[1]["window"] != "steps1-2" {
						t.Errorf("rank %v: %v", rank, got[1])
					}
				}
				slices.Sort(ranks)
				if !slices.Equal(ranks, []float64{1, 2}) {
					t.Errorf("snapshots of ranks %v: %v", ranks, all)
				}
			})
		})
	}
}

func TestSnapshotsAndDumpsShareOneSequence(t *testing.T) {
	const program = `
import os, threading, torch, heapwire
torch.empty(1)
def snapshots():
    for _ in range(20):
        assert heapwire.snapshot("mine")
def dumps():
    for _ in range(20):
        assert heapwire.dump()
threads = [threading.Thread(target=f) for f in (snapshots, dumps, snapshots)]
[t.start() for t in threads]
[t.join() for t in threads]
assert heapwire.status()["errors"] == [], heapwire.status()
`
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		r := under(t, library, capture(t, "HEAPWIRE_INTERVAL=0", "HEAPWIRE_EXIT_DUMP=off"), p.Path, "-c", program)
		if r.code != 0 {
			t.Fatalf("exit status %d, stderr %s", r.code, r.stderr)
		}
		seen := map[string]bool{}
		for _, name := range append(files(only(t, r.snapshots(t))), r.dumps...) {
			number, _, _ := strings.Cut(filepath.Base(name), ".")
			if seen[number] {
				t.Errorf("the number %s was given out twice", number)
			}
			seen[number] = true
		}
		if len(seen) != 60 || !seen["000001"] || !seen["000060"] {
			t.Errorf("%d numbers, want 000001 to 000060", len(seen))
		}
	})
}

// A process that is killed leaves its first refusal, whole.
func TestAKilledProcessLeavesItsSnapshot(t *testing.T) {
	const program = `
import os, signal, torch
try:
    torch.empty(2 << 30)
except torch.OutOfMemoryError:
    os.kill(os.getpid(), signal.SIGKILL)
`
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		r := under(t, library, capture(t, "HEAPWIRE_INTERVAL=0"), p.Path, "-c", program)
		if got := only(t, r.snapshots(t)); r.code != 137 || len(got) != 1 || got[0]["reason"] != "oom" {
			t.Errorf("exit status %d, snapshots %v", r.code, got)
		}
	})
}

// What makes a program no target makes it none here.
func TestWhatIsNotProfiledIsNotWatched(t *testing.T) {
	const program = `
import sys, torch
try:
    torch.empty(2 << 30)
except torch.OutOfMemoryError:
    print(torch.counts["observers"], len(torch.optim.optimizer._global_optimizer_post_hooks), [f for f in sys.meta_path if hasattr(f, "heapwire")])
`
	p := newest(t)
	for _, env := range []string{"HEAPWIRE=off", "HEAPWIRE_TARGET=none", "HEAPWIRE_TORCH=off"} {
		r := under(t, library, capture(t, env), p.Path, "-c", program)
		if r.code != 0 || r.stdout != "0 0 []\n" || r.stderr != "" || len(r.snapshots(t)) > 0 {
			t.Errorf("%s: exit status %d, stdout %q, stderr %s", env, r.code, r.stdout, r.stderr)
		}
	}
	for _, flag := range []string{"-I", "-E", "-S"} {
		r := under(t, library, capture(t), p.Path, flag, "-c", "import sys; print([f for f in sys.meta_path if hasattr(f, 'heapwire')])")
		if r.code != 0 || r.stdout != "[]\n" {
			t.Errorf("%s: exit status %d, stdout %q, stderr %s", flag, r.code, r.stdout, r.stderr)
		}
	}
}

func newest(t *testing.T) pythons.Python {
	t.Helper()
	all, err := pythons.Find()
	if err != nil {
		t.Fatal(err)
	}
	supported := slices.DeleteFunc(slices.Clone(all), func(p pythons.Python) bool { return !p.Supported() })
	if len(supported) == 0 {
		t.Skip("no supported interpreter on this machine")
	}
	return supported[len(supported)-1]
}
