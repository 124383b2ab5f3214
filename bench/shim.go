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
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/heapwire/heapwire/shim/test/pythons"
)

type shimOptions struct {
	shim, window, jobs, build, svg string
	versions                       string
	rounds, peerRounds             int
	peers                          bool
}

// A variant is one way to run the same program.
type variant struct {
	name string
	env  []string
	// wrap is what stands between the interpreter and the program: a profiler's own command. Its package is the peer's.
	wrap []string
	peer string
}

func (o shimOptions) variants() []variant {
	shim := func(more ...string) []string { return append([]string{"LD_PRELOAD=" + o.shim}, more...) }
	v := []variant{
		{name: "glibc"},
		{name: "glibc again"},
	}
	if jemalloc := findJemalloc(); jemalloc != "" {
		v = append(v, variant{name: "jemalloc alone", env: []string{"LD_PRELOAD=" + jemalloc}})
	}
	v = append(v,
		variant{name: "shim, nothing sampled", env: shim("HEAPWIRE_TARGET=none")},
		variant{name: "shim", env: shim()},
		variant{name: "shim, objects off", env: shim("HEAPWIRE_PYTHON_OBJECTS=off")},
		variant{name: "shim, objects malloc", env: shim("HEAPWIRE_PYTHON_OBJECTS=malloc")},
		variant{name: "shim, lean", env: shim("HEAPWIRE_ALLOCATOR=lean")},
		variant{name: "shim, 64 KiB", env: shim("HEAPWIRE_SAMPLE_BYTES=64KiB")},
		variant{name: "shim, 64 KiB, objects off", env: shim("HEAPWIRE_SAMPLE_BYTES=64KiB", "HEAPWIRE_PYTHON_OBJECTS=off")},
		variant{name: "tracemalloc", wrap: []string{"-X", "tracemalloc"}, peer: "python"},
	)
	if o.peers {
		v = append(v,
			variant{name: "memray", wrap: []string{"-m", "memray", "run", "-q", "-f", "-o", filepath.Join(o.build, "memray.bin")}, peer: "memray"},
			variant{name: "scalene", wrap: []string{"-m", "scalene", "run", "--memory", "-o", filepath.Join(o.build, "scalene.json")}, peer: "scalene"},
		)
	}
	return v
}

// programs of bench/jobs, with the argument that each takes.
var programs = [][]string{
	{"nbody"}, {"calls"}, {"documents"}, {"churn"}, {"buffers"}, {"strings"}, {"cloop", "1"}, {"cloop", "2"}, {"loader"}, {"rl"},
}

// A run is what the work of one process cost, as the program measured it.
type run struct {
	CPU  float64 `json:"cpu_s"`
	Wall float64 `json:"wall_s"`
	RSS  float64 `json:"rss_bytes"`
}

// runs of one interpreter: program, variant, round.
type runs map[string]map[string][]run

// measureShim runs every program under every variant, interleaved: the variants of a round are neighbours in time, in
// changing order, so that a machine that changes its speed changes it for all of them.
func measureShim(ctx context.Context, w io.Writer, o shimOptions) error {
	if _, err := os.Stat(o.shim); err != nil {
		return fmt.Errorf("%w: run make build", err)
	}
	if err := os.MkdirAll(o.build, 0o700); err != nil {
		return err
	}
	library, pairs, stacks := filepath.Join(o.build, "cloop.so"), filepath.Join(o.build, "pairs"), filepath.Join(o.build, "stacks")
	for _, c := range [][]string{
		{"-shared", "-fPIC", "-o", library, filepath.Join(o.jobs, "cloop.c")},
		{"-o", pairs, filepath.Join(o.jobs, "cloop.c")},
		{"-o", stacks, filepath.Join(o.jobs, "stacks.c")},
	} {
		cc := exec.CommandContext(ctx, "gcc", append([]string{"-O2", "-Wall", "-fno-builtin-malloc", "-fno-builtin-free", "-pthread"}, c...)...)
		if out, err := cc.CombinedOutput(); err != nil {
			return fmt.Errorf("compiling %s: %w: %s", c[len(c)-1], err, out)
		}
	}
	valgrind, err := exec.LookPath("valgrind")
	if err != nil {
		fmt.Fprintln(w, "\nInstructions were not counted: valgrind is not installed")
	} else if err := countInstructions(ctx, w, o, valgrind, pairs); err != nil {
		return err
	}
	if err := measureDumps(ctx, w, o, stacks); err != nil {
		return err
	}
	all, err := pythons.Find()
	if err != nil {
		return err
	}
	var chosen []pythons.Python
	for _, version := range strings.Split(o.versions, ",") {
		at := slices.IndexFunc(all, func(p pythons.Python) bool { return strings.HasPrefix(p.String()+".", version+".") })
		if at < 0 {
			fmt.Fprintf(w, "\nPython %s is not on this machine\n", version)
			continue
		}
		chosen = append(chosen, all[at])
	}
	if err := measureCaptures(ctx, w, o, chosen); err != nil {
		return err
	}
	if valgrind != "" && len(chosen) > 0 {
		if err := countPrograms(ctx, w, o, valgrind, chosen[0]); err != nil {
			return err
		}
	}
	for i, p := range chosen {
		results, variants, err := o.measure(ctx, w, p, library)
		if err != nil {
			return err
		}
		report(w, p.String(), results, variants, o)
		if i == 0 && o.svg != "" {
			if err := os.WriteFile(o.svg, plot(p.String(), results, variants), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o shimOptions) measure(ctx context.Context, w io.Writer, p pythons.Python, library string) (runs, []variant, error) {
	variants, python := o.variants(), p.Path
	peerPython := python
	if o.peers {
		var err error
		if peerPython, err = install(ctx, filepath.Join(o.build, "venv-"+p.String()), python); err != nil {
			fmt.Fprintf(w, "\nPython %s: no peers: %v\n", p, err)
			variants = slices.DeleteFunc(variants, func(v variant) bool { return v.peer != "" && v.peer != "python" })
		}
	}
	spool, err := os.MkdirTemp(o.build, "spool-")
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = os.RemoveAll(spool) }()
	results := runs{}
	refused := map[string]bool{}
	for round := range o.rounds {
		for _, program := range programs {
			name := strings.Join(program, " ")
			if results[name] == nil {
				results[name] = map[string][]run{}
			}
			for i := range variants {
				v := variants[(i+round)%len(variants)]
				if v.peer != "" && round >= o.peerRounds || refused[v.name+name] {
					continue
				}
				interpreter := python
				if v.peer != "" {
					interpreter = peerPython
				}
				r, err := o.runOnce(ctx, interpreter, v, program, library, spool)
				switch {
				case err != nil && v.peer != "":
					refused[v.name+name] = true
					fmt.Fprintf(os.Stderr, "bench: %s under %s: %v\n", name, v.name, err)
				case err != nil:
					return nil, nil, fmt.Errorf("%s under %s: %w", name, v.name, err)
				default:
					results[name][v.name] = append(results[name][v.name], r)
				}
			}
		}
		fmt.Fprintf(os.Stderr, "bench: %s, round %d of %d\n", p, round+1, o.rounds)
	}
	return results, variants, nil
}

func (o shimOptions) runOnce(ctx context.Context, python string, v variant, program []string, library, spool string) (run, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	args := append(slices.Clone(v.wrap), filepath.Join(o.jobs, "run.py"))
	if v.peer == "scalene" {
		args = append(args, "---")
	}
	cmd := exec.CommandContext(ctx, python, append(args, program...)...)
	env := append([]string{"HEAPWIRE_SPOOL=" + spool, "BENCH_CLOOP=" + library, "PYTHONDONTWRITEBYTECODE=1"}, v.env...)
	if v.peer != "" {
		env = append(env, "BENCH_SCALE=0.25") // ratios are of equal work: see scaled
	}
	cmd.Env = pythons.CleanEnv(env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return run{}, fmt.Errorf("%w: %s", err, lastLine(stderr.String()))
	}
	var r run
	at := bytes.Index(out, []byte(`{"cpu_s"`))
	if at < 0 {
		return run{}, fmt.Errorf("no figures in %q", out)
	}
	if err := json.NewDecoder(bytes.NewReader(out[at:])).Decode(&r); err != nil {
		return run{}, fmt.Errorf("reading its figures: %w", err)
	}
	if r.CPU <= 0 || r.Wall <= 0 {
		return run{}, errors.New("it measured nothing")
	}
	if v.peer != "" {
		r.CPU, r.Wall = r.CPU*4, r.Wall*4
	}
	return r, nil
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// install makes a virtual environment with the peers in it and gives its interpreter.
func install(ctx context.Context, dir, python string) (string, error) {
	in := filepath.Join(dir, "bin", "python")
	if exec.CommandContext(ctx, in, "-c", "import memray, scalene").Run() == nil {
		return in, nil
	}
	if out, err := exec.CommandContext(ctx, python, "-m", "venv", dir).CombinedOutput(); err != nil {
		return "", fmt.Errorf("making a virtual environment: %w: %s", err, lastLine(string(out)))
	}
	if out, err := exec.CommandContext(ctx, in, "-m", "pip", "install", "-q", "memray", "scalene").CombinedOutput(); err != nil {
		return "", fmt.Errorf("installing memray and scalene: %w: %s", err, lastLine(string(out)))
	}
	return in, nil
}

func findJemalloc() string {
	for _, pattern := range []string{"/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "/usr/lib64/libjemalloc.so.2", "/usr/lib/libjemalloc.so.2"} {
		if _, err := os.Stat(pattern); err == nil {
			return pattern
		}
	}
	return ""
}

// report prints one table a figure: programs are columns, each cell the median of the rounds' own ratios to glibc.
func report(w io.Writer, python string, results runs, variants []variant, o shimOptions) {
	figures := []struct {
		name string
		of   func(run) float64
	}{
		{"CPU time", func(r run) float64 { return r.CPU }},
		{"Wall time", func(r run) float64 { return r.Wall }},
		{"Largest resident memory", func(r run) float64 { return r.RSS }},
	}
	for _, f := range figures {
		fmt.Fprintf(w, "\n%s ÷ plain glibc, Python %s, medians of %d paired rounds (peers %d)\n\n|  |", f.name, python, o.rounds, min(o.rounds, o.peerRounds))
		for _, p := range programs {
			fmt.Fprintf(w, " %s |", strings.Join(p, " "))
		}
		fmt.Fprintf(w, "\n|---|%s\n", strings.Repeat("---|", len(programs)))
		for i, v := range variants {
			fmt.Fprintf(w, "| %s |", v.name)
			for _, p := range programs {
				name := strings.Join(p, " ")
				base, mine := results[name][variants[0].name], results[name][v.name]
				switch {
				case len(mine) == 0:
					fmt.Fprint(w, " – |")
				case i == 0 && f.name == "Largest resident memory":
					fmt.Fprintf(w, " %.0f MiB |", quantile(each(base, f.of), 0.5)/(1<<20))
				case i == 0:
					fmt.Fprintf(w, " %.0f ms |", quantile(each(base, f.of), 0.5)*1000)
				default:
					fmt.Fprintf(w, " %.2f |", quantile(ratios(mine, base, f.of), 0.5))
				}
			}
			fmt.Fprintln(w)
		}
	}
}

func each(runs []run, figure func(run) float64) []float64 {
	values := make([]float64, len(runs))
	for i, r := range runs {
		values[i] = figure(r)
	}
	return values
}

func ratios(mine, base []run, figure func(run) float64) []float64 {
	values := make([]float64, min(len(mine), len(base)))
	for i := range values {
		values[i] = figure(mine[i]) / figure(base[i])
	}
	return values
}

// quantile interpolates between the two nearest values.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// callgrind counts the instructions of a command.
func callgrind(ctx context.Context, valgrind string, env []string, command ...string) (float64, error) {
	args := append([]string{"--tool=callgrind", "--callgrind-out-file=/dev/null"}, command...)
	cmd := exec.CommandContext(ctx, valgrind, args...)
	cmd.Env = pythons.CleanEnv(env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("counting instructions of %s: %w: %s", strings.Join(command, " "), err, lastLine(string(out)))
	}
	_, after, ok := strings.Cut(string(out), "Collected : ")
	if !ok {
		return 0, fmt.Errorf("counting instructions of %s: no figure in %q", strings.Join(command, " "), lastLine(string(out)))
	}
	return strconv.ParseFloat(strings.Fields(after)[0], 64)
}

// counted tells whether a variant's instructions are worth counting: not the control's, and no peer's.
func (v variant) counted() bool { return v.peer == "" && !strings.Contains(v.name, "again") }

// countInstructions prints what a malloc and its free cost, in instructions: the difference of two runs under callgrind, which
// no other load on the machine moves.
func countInstructions(ctx context.Context, w io.Writer, o shimOptions, valgrind, pairs string) error {
	sizes := []int{100, 1000, 5000, 20000, 40000, 200000, 1000000}
	fmt.Fprintf(w, "\nInstructions of a malloc and its free, sizes from the given one to 63 bytes more, mean of 20 000 pairs\n\n|  |")
	for _, s := range sizes {
		fmt.Fprintf(w, " %d |", s)
	}
	fmt.Fprintf(w, "\n|---|%s\n", strings.Repeat("---|", len(sizes)))
	for _, v := range o.variants() {
		if !v.counted() || strings.Contains(v.name, "objects") {
			continue
		}
		fmt.Fprintf(w, "| %s |", v.name)
		for _, size := range sizes {
			var counts [2]float64
			for i, n := range []int{2000, 22000} {
				var err error
				env := append([]string{"HEAPWIRE_TARGET=all", "HEAPWIRE_EXIT_DUMP=off", "HEAPWIRE_SPOOL=" + o.build}, v.env...)
				if counts[i], err = callgrind(ctx, valgrind, env, pairs, strconv.Itoa(n), strconv.Itoa(size)); err != nil {
					return err
				}
			}
			fmt.Fprintf(w, " %.0f |", (counts[1]-counts[0])/20000)
		}
		fmt.Fprintln(w)
	}
	return nil
}

// countPrograms does so for the work of the programs that the clocks can tell least about.
func countPrograms(ctx context.Context, w io.Writer, o shimOptions, valgrind string, p pythons.Python) error {
	names := []string{"nbody", "calls", "documents", "churn", "buffers", "strings"}
	fmt.Fprintf(w, "\nInstructions of the work ÷ plain glibc, Python %s\n\n|  | %s |\n|---|%s\n", p, strings.Join(names, " | "), strings.Repeat("---|", len(names)))
	base := map[string]float64{}
	for _, v := range o.variants() {
		if !v.counted() {
			continue
		}
		fmt.Fprintf(w, "| %s |", v.name)
		for _, name := range names {
			var counts [2]float64
			for i, scale := range []string{"0.05", "0.15"} {
				var err error
				env := append([]string{
					"BENCH_SCALE=" + scale, "PYTHONHASHSEED=0", "PYTHONDONTWRITEBYTECODE=1", "HEAPWIRE_EXIT_DUMP=off", "HEAPWIRE_INTERVAL=0", "HEAPWIRE_SPOOL=" + o.build,
				}, v.env...)
				if counts[i], err = callgrind(ctx, valgrind, env, p.Path, filepath.Join(o.jobs, "run.py"), name); err != nil {
					return err
				}
			}
			work := counts[1] - counts[0]
			if base[name] == 0 {
				base[name] = work
				fmt.Fprintf(w, " %.0f M |", work*10/1e6)
			} else {
				fmt.Fprintf(w, " %.3f |", work/base[name])
			}
		}
		fmt.Fprintln(w)
	}
	return nil
}

// measureDumps prints what a dump of many stacks takes, and how long a thread waits meanwhile that takes a sample each time.
func measureDumps(ctx context.Context, w io.Writer, o shimOptions, stacks string) error {
	fmt.Fprint(w, "\nOne dump, native stacks of 40 frames; the pause is the longest malloc of a thread that is sampled each time, minimum, median and maximum of the dumps\n\n")
	fmt.Fprintln(w, "| stacks | dumps | dump, ms | longest malloc without a dump, ms | pause, ms | file, MB | jemalloc's metadata, MiB |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|")
	for _, n := range []int{1000, 10000, 100000} {
		var took, pause, control []float64
		var last struct {
			Dump     float64 `json:"dump_s"`
			Pause    float64 `json:"pause_s"`
			Control  float64 `json:"control_s"`
			File     float64 `json:"file_bytes"`
			Metadata float64 `json:"metadata_bytes"`
		}
		dumps := 7
		if n > 50000 {
			dumps = 3
		}
		for range dumps {
			spool, err := os.MkdirTemp(o.build, "spool-")
			if err != nil {
				return err
			}
			cmd := exec.CommandContext(ctx, stacks, strconv.Itoa(n))
			cmd.Env = pythons.CleanEnv("LD_PRELOAD="+o.shim, "HEAPWIRE_TARGET=all", "HEAPWIRE_EXIT_DUMP=off", "HEAPWIRE_JUMP=off", "HEAPWIRE_PRESSURE=off",
				"HEAPWIRE_SAMPLE_BYTES=1", "HEAPWIRE_SPOOL="+spool)
			out, err := cmd.Output()
			_ = os.RemoveAll(spool)
			if err != nil {
				return fmt.Errorf("dumping %d stacks: %w", n, err)
			}
			if err := json.Unmarshal(out, &last); err != nil {
				return fmt.Errorf("dumping %d stacks: %w", n, err)
			}
			took, pause, control = append(took, last.Dump*1000), append(pause, last.Pause*1000), append(control, last.Control*1000)
		}
		three := func(v []float64) string {
			return fmt.Sprintf("%.1f / %.1f / %.1f", quantile(v, 0), quantile(v, 0.5), quantile(v, 1))
		}
		fmt.Fprintf(w, "| %d | %d | %s | %s | %s | %.1f | %.1f |\n", n, dumps, three(took), three(control), three(pause), last.File/1e6, last.Metadata/(1<<20))
	}
	return nil
}

// measureCaptures prints what the sampling hook itself takes, without the allocator's part of a sample.
func measureCaptures(ctx context.Context, w io.Writer, o shimOptions, chosen []pythons.Python) error {
	if _, err := os.Stat(o.window); err != nil {
		fmt.Fprintf(w, "\nCaptures were not measured: %v: run make -C shim test-library\n", err)
		return nil //nolint:nilerr // said, and no failure
	}
	depths := []string{"3", "30", "62"}
	fmt.Fprintf(w, "\nOne capture, µs, by Python frames, each of a function of its own, and the native leaf; fastest of 50 rounds of 2000\n\n| Python | %s |\n|---|%s\n",
		strings.Join(depths, " | "), strings.Repeat("---|", len(depths)))
	for _, p := range chosen {
		cmd := exec.CommandContext(ctx, p.Path, append([]string{filepath.Join(o.jobs, "capture.py")}, depths...)...)
		cmd.Env = pythons.CleanEnv("LD_PRELOAD="+o.window, "HEAPWIRE_EXIT_DUMP=off", "HEAPWIRE_SPOOL="+o.build)
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("measuring captures under %s: %w", p, err)
		}
		took := map[string]float64{}
		if err := json.Unmarshal(out, &took); err != nil {
			return fmt.Errorf("measuring captures under %s: %w", p, err)
		}
		fmt.Fprintf(w, "| %s |", p)
		for _, d := range depths {
			fmt.Fprintf(w, " %.2f |", took[d]/1000)
		}
		fmt.Fprintln(w)
	}
	return nil
}
