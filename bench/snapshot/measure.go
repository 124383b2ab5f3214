// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/heapwire/heapwire/convert/torchmem/snapgen"
)

type options struct {
	python, dir, generator, only string
	rounds                       int
}

// file is one snapshot to measure.
type file struct {
	name string
	what string
	// For convert/torchmem/snapgen. Sizes follow from the events.
	made snapgen.Options
	// The same for gen_snapshot.py.
	arguments []string
}

// files are those of docs/performance.md. snapgen writes about 10 kB a step.
var files = []file{
	{"2MB", "Python stacks", snapgen.Options{Steps: 200}, []string{"--size", "2MB", "--varlen", "--oom", "--seed", "7"}},
	{"100MB", "Python stacks", snapgen.Options{Steps: 10_000}, []string{"--size", "100MB", "--varlen", "--oom", "--seed", "7"}},
	{"5000stacks", "5,000 distinct stacks", snapgen.Options{Steps: 2_000, Stacks: 5_000}, []string{"--size", "20MB", "--distinct-stacks", "5000", "--pending-free", "20"}},
	{"1GB", "Python stacks", snapgen.Options{Steps: 106_000}, []string{"--size", "1GB", "--varlen", "--oom", "--seed", "7"}},
	{"1GB-cpp", "C++ and Python stacks", snapgen.Options{Steps: 83_000, CPP: true}, []string{"--size", "1GB", "--varlen", "--oom", "--seed", "7", "--stacks", "all"}},
}

// pickleLoad is CPython's own reading, with the class loader shut as any sane reader has it.
const pickleLoad = `
import pickle, sys, time
class Data(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError("not data")
with open(sys.argv[1], "rb") as f:
    start = time.perf_counter()
    Data(f).load()
    print('{"seconds": %f}' % (time.perf_counter() - start))
`

// cost is what one run of a child took.
type cost struct {
	result
	cpu float64 // seconds, user and system
	rss int64   // peak, bytes
}

func (o *options) measure(ctx context.Context, w io.Writer) error {
	dir := o.dir
	if dir == "" {
		temporary, err := os.MkdirTemp("", "heapwire-snapshot-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(temporary)
		dir = temporary
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s, %d CPUs, %s\n\n", cpuModel(), runtime.NumCPU(), runtime.Version())
	fmt.Fprintf(w, "A snapshot becomes the profiles of all views; fastest of %d runs, wall clock, peak resident memory of the process\n\n", o.rounds)
	fmt.Fprintln(w, "| file | content | MB | events | stacks | heapwire s | CPU s | MB/s | memory MiB | pickle.load s | memory MiB | faster | memory ÷ |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|---|---|---|---|")
	var over []string
	for _, f := range files {
		if o.only != "" && o.only != f.name {
			continue
		}
		path, err := o.make(ctx, dir, f)
		if err != nil {
			return err
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		size := info.Size()
		ours, err := o.best(ctx, self, "-read", path)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "| %s | %s | %.1f | %d | %d | %.2f | %.2f | %.0f | %.0f |", f.name, f.what, float64(size)/1e6, ours.Events, ours.Stacks,
			ours.Seconds, ours.cpu, float64(size)/1e6/ours.Seconds, mib(ours.rss))
		if o.python == "" {
			fmt.Fprintln(w, " | | | |")
		} else {
			theirs, err := o.best(ctx, o.python, "-c", pickleLoad, path)
			if err != nil {
				return err
			}
			faster, smaller := theirs.Seconds/ours.Seconds, float64(theirs.rss)/float64(ours.rss)
			fmt.Fprintf(w, " %.2f | %.0f | %.1f | %.1f |\n", theirs.Seconds, mib(theirs.rss), faster, smaller)
			if f.name == "1GB" && (faster < 6 || smaller < 30) {
				over = append(over, fmt.Sprintf("%s: %.1f times faster, %.1f times smaller than pickle.load: want 6 and 30", f.name, faster, smaller))
			}
		}
		if f.name == "1GB" && ours.Seconds > 5 {
			over = append(over, fmt.Sprintf("%s: %.2f s: want 5 at most", f.name, ours.Seconds))
		}
		if limit := 64<<20 + size/10; ours.rss > limit {
			over = append(over, fmt.Sprintf("%s: %.0f MiB: want %.0f at most", f.name, mib(ours.rss), mib(limit)))
		}
		if o.dir == "" {
			os.Remove(path)
		}
	}
	if len(over) > 0 {
		return fmt.Errorf("%w: %s", errOver, strings.Join(over, "; "))
	}
	return nil
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// make makes a file unless it is there.
func (o *options) make(ctx context.Context, dir string, f file) (string, error) {
	path := filepath.Join(dir, f.name+".pickle")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if o.generator != "" {
		arguments := append([]string{o.generator, "--out", path, "--no-truth"}, f.arguments...)
		if out, err := exec.CommandContext(ctx, o.python, arguments...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("making %s: %w: %s", path, err, out)
		}
		return path, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	// In a process of its own: a child's peak memory begins with what its parent has at the time (exec_mmap in fs/exec.c).
	if out, err := exec.CommandContext(ctx, self, "-write", path, "-only", f.name).CombinedOutput(); err != nil {
		return "", fmt.Errorf("making %s: %w: %s", path, err, out)
	}
	return path, nil
}

// writeOne is the child that makes a file.
func writeOne(path, name string) error {
	for _, f := range files {
		if f.name != name {
			continue
		}
		out, err := os.Create(path)
		if err != nil {
			return err
		}
		f.made.OOM, f.made.Depth, f.made.Seed = true, 12, 7
		err = snapgen.Generate(f.made).Write(out)
		return errors.Join(err, out.Close())
	}
	return fmt.Errorf("no file is called %q", name)
}

// best runs a child several times.
func (o *options) best(ctx context.Context, name string, arguments ...string) (cost, error) {
	var best cost
	for i := range max(1, o.rounds) {
		cmd := exec.CommandContext(ctx, name, arguments...)
		var out, complaints bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &complaints
		if err := cmd.Run(); err != nil {
			return best, fmt.Errorf("running %s: %w: %s", filepath.Base(name), err, complaints.Bytes())
		}
		var c cost
		if err := json.Unmarshal(out.Bytes(), &c.result); err != nil {
			return best, fmt.Errorf("reading the output of %s: %w", filepath.Base(name), err)
		}
		usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		if !ok {
			return best, errors.New("this system does not tell the memory of a child")
		}
		c.cpu = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
		c.rss = usage.Maxrss << 10 // kilobytes on Linux
		if i == 0 || c.Seconds < best.Seconds {
			best.result, best.cpu = c.result, c.cpu
		}
		best.rss = max(best.rss, c.rss)
		if c.Seconds > time.Minute.Seconds() {
			break
		}
	}
	return best, nil
}

func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return strconv.Itoa(runtime.NumCPU()) + " x " + runtime.GOARCH
}
