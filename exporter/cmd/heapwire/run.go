// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/bits"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/heapwire/heapwire/convert"
	"github.com/heapwire/heapwire/convert/symbol"
	"github.com/heapwire/heapwire/exporter"
	"github.com/heapwire/heapwire/exporter/run"
	"github.com/heapwire/heapwire/exporter/sink"
	"github.com/heapwire/heapwire/exporter/spool"
	"github.com/heapwire/heapwire/exporter/telemetry"
)

type runFlags struct {
	sinks        sinkFlags
	shim         shimFlags
	keep         bool
	noSummary    bool
	verbose      bool
	selfProfile  bool
	drainTimeout time.Duration
	limits       limitFlags
	snapshots    []string
}

// shimFlags are what the shim is told through the environment.
type shimFlags struct {
	lib         string
	spool       string
	interval    time.Duration
	sampleBytes sizeValue
	lgSample    int
}

// sizeValue is a flag of bytes, with the units that the shim knows.
type sizeValue int64

func (s *sizeValue) Type() string { return "SIZE" }

func (s *sizeValue) String() string {
	if *s == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*s), 10)
}

func (s *sizeValue) Set(text string) error {
	digits := strings.TrimRight(text, "KMGTkmgtiIbB")
	factor, ok := map[string]int64{
		"": 1, "b": 1, "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30,
	}[strings.ToLower(text[len(digits):])]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || !ok || n < 1 || n > (1<<40)/factor {
		return fmt.Errorf("want 1 to 1024GiB, such as 512KiB")
	}
	*s = sizeValue(n * factor)
	return nil
}

func (f *shimFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.DurationVar(&f.interval, "interval", 0, "time between two dumps, 100ms to 24h, 0 for none (HEAPWIRE_INTERVAL; the shim's default is 60s)")
	flags.Var(&f.sampleBytes, "sample-bytes", "mean number of allocated bytes between two samples (HEAPWIRE_SAMPLE_BYTES; the shim's default is 512KiB)")
	flags.IntVar(&f.lgSample, "lg-sample", 0, "the same as a power of two, as jemalloc counts: 19 is 512KiB")
	flags.StringVar(&f.lib, "lib", "", "`PATH` of libheapwire.so (HEAPWIRE_LIB; default beside this program or in ../lib)")
}

// settings checks the flags and gives the variables that say the same to the shim.
func (f *shimFlags) settings(cmd *cobra.Command) ([][2]string, error) {
	var vars [][2]string
	if cmd.Flags().Changed("interval") {
		if f.interval != 0 && (f.interval < 100*time.Millisecond || f.interval > 24*time.Hour) {
			return nil, usagef("--interval %v: want 100ms to 24h, or 0 for none", f.interval)
		}
		vars = append(vars, [2]string{"HEAPWIRE_INTERVAL", strconv.FormatInt(f.interval.Milliseconds(), 10) + "ms"})
	}
	if cmd.Flags().Changed("lg-sample") {
		if f.sampleBytes > 0 {
			return nil, usagef("--sample-bytes and --lg-sample say the same: give one")
		}
		if f.lgSample < 0 || f.lgSample > 40 {
			return nil, usagef("--lg-sample %d: want 0 to 40", f.lgSample)
		}
		f.sampleBytes = 1 << f.lgSample
	}
	if n := int64(f.sampleBytes); n > 0 {
		n = 1 << (bits.Len64(uint64(n)) - 1) // as the shim rounds
		vars = append(vars, [2]string{"HEAPWIRE_SAMPLE_BYTES", strconv.FormatInt(n, 10)})
	}
	return vars, nil
}

func (f *shimFlags) library() (string, error) {
	named := f.lib
	if named == "" {
		named = os.Getenv("HEAPWIRE_LIB")
	}
	return run.FindLibrary(named)
}

func newRun() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARGS...]",
		Short: "Run a job and profile its memory",
		Long: `Run starts a job with the shim in it (LD_PRELOAD, added to what is there) and sends what the job's processes dump to
the sinks: OTLP and Pyroscope where their standard variables or the flags below name an endpoint, files with --out.
Without any of these: files under ./` + defaultOut + `/.

Terminal, standard streams, signals and exit status are the job's own: 128 and the signal's number if a signal ended it,
127 if the command was not found, 126 if it cannot be executed. A sink that fails changes none of that. After the job's
end what is left is delivered, within --drain-timeout, and a summary is written to standard error. What cannot be
delivered stays in the spool, and its place is said.

Heapwire's own failures before the job starts: 1, wrong usage: 2.`,
		Example: "  heapwire run --interval 10s --out profiles -- python train.py --epochs 3",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("no command to run")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false)
	f.sinks.register(flags)
	f.shim.register(cmd)
	flags.StringVar(&f.shim.spool, "spool", "", "the folder dumps go through (HEAPWIRE_SPOOL; default a private one, removed afterwards)")
	f.limits.register(flags)
	flags.StringArrayVar(&f.snapshots, "snapshots", nil, "send the memory snapshots too that others, such as verl or torch_npu, write below `DIR`; may be repeated")
	flags.BoolVar(&f.selfProfile, "self-profile", false, "push heapwire's own Go profile to the Pyroscope server too")
	flags.BoolVar(&f.keep, "keep", false, "keep the dumps in the spool after delivery")
	flags.DurationVar(&f.drainTimeout, "drain-timeout", 10*time.Second, "longest time to deliver what is left when the job has ended")
	flags.BoolVar(&f.noSummary, "no-summary", false, "write no summary to standard error")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "say more on standard error")
	return cmd
}

func (f *runFlags) run(cmd *cobra.Command, command []string) error {
	vars, err := f.shim.settings(cmd)
	if err != nil {
		return err
	}
	if f.drainTimeout < 0 {
		return usagef("--drain-timeout %v: want 0 or more", f.drainTimeout)
	}
	library, err := f.shim.library()
	if err != nil {
		return err
	}
	run.Modest()
	env, err := run.Preload(os.Environ(), library)
	if err != nil {
		return err
	}
	for _, v := range vars {
		env = run.Set(env, v[0], v[1])
	}
	level := slog.LevelWarn
	if f.verbose {
		level = slog.LevelDebug
	}
	log := newLogger(cmd.ErrOrStderr(), level)
	if python, err := run.FindPython(library); err == nil {
		env = run.PythonPath(env, python)
	} else {
		log.Warn("no snapshots of device memory will be taken", "error", err)
	}
	place, err := f.openSpool(log)
	if err != nil {
		return err
	}
	folders, err := f.folders(log)
	if err != nil {
		return errors.Join(err, place.remove())
	}
	env = run.Set(env, "HEAPWIRE_SPOOL", place.spool.Path())
	env = run.Set(env, "HEAPWIRE_EXPORT", "off") // this process is the exporter
	to, err := f.sinks.open(log)
	if err != nil {
		// A faulty variable is no reason to keep a job from running.
		log.Warn(oneLine(err.Error()))
	}
	own, err := telemetry.OpenMetrics(context.Background(), f.sinks.getenv, currentVersion(), log)
	if err != nil {
		log.Warn(oneLine(err.Error()))
	}
	if f.selfProfile {
		stop, err := telemetry.StartProfile(f.sinks.getenv, currentVersion())
		if err != nil {
			log.Warn(oneLine(err.Error()))
		}
		defer stop()
	}
	symbols := &symbol.Resolver{}
	pipeline, err := exporter.New(exporter.Config{
		Meters: own.Provider(), Limits: f.limits.limits(),
		Spool: place.spool, Sinks: orNone(append(to.Profiles, to.Figures...)), Events: to.Events, Keep: f.keep, Logger: log,
		Folders: folders,
		Convert: func(r io.Reader, name string) (*convert.Heap, error) {
			return convert.HeapDump(r, convert.Options{Name: name, Symbols: symbols})
		},
	})
	if err != nil {
		return errors.Join(err, place.remove())
	}
	// A closed standard error must not end us before the job has ended, os/signal, "SIGPIPE".
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	began := time.Now()
	job, err := run.Start(command, env)
	if err != nil {
		status := exitFailure
		var start *run.StartError
		if errors.As(err, &start) {
			status = start.Status
		}
		return &statusError{status: status, err: errors.Join(err, place.remove())}
	}
	if start, err := spool.StartTicks(job.PID()); err == nil {
		pipeline.Expect(job.PID(), start)
	}
	pipeline.Start()
	status, by := job.Wait()
	pipeline.Ended(job.PID(), int(by))
	report := report{command: command, status: status, signal: by, took: time.Since(began), out: to.out, verbose: f.verbose}
	f.finish(cmd, job, pipeline, place, &report)
	last, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := own.Shutdown(last); err != nil {
		log.Debug(oneLine(err.Error()))
	}
	return &statusError{status: status}
}

// finish delivers what is left. Nothing in it changes the job's exit status.
func (f *runFlags) finish(cmd *cobra.Command, job *run.Job, pipeline *exporter.Pipeline, place *spoolPlace, report *report) {
	ctx, cancel := context.WithTimeout(context.Background(), f.drainTimeout)
	defer cancel()
	go func() {
		for s := range job.After() {
			switch s {
			case unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT:
				cancel()
			}
		}
	}()
	place.awaitDeaths(ctx)
	report.err = pipeline.Shutdown(ctx)
	report.stats = pipeline.Stats()
	report.processes = pipeline.Processes()
	report.own = func(p exporter.Process) bool { return p.Dumps > 0 && p.Identity.StartTicks >= place.since }
	report.growth = pipeline.Growth(3, report.own)
	report.verdicts = pipeline.Verdicts(report.own)
	if place.private {
		if err := place.remove(); err != nil {
			report.left = place.spool.Path()
		}
	} else if errors.Is(report.err, exporter.ErrUndelivered) {
		report.left = place.spool.Path()
	}
	text := report.text()
	if !f.noSummary {
		_, _ = io.WriteString(cmd.ErrOrStderr(), text)
	} else if report.left != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "heapwire: left in %s\n", report.left)
	}
	if report.out != "" && report.stats.Converted > 0 {
		if err := writeFile(filepath.Join(report.out, "summary.txt"), []byte(text)); err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "heapwire: %v\n", err)
		}
	}
}

// folders are those of --snapshots.
func (f *runFlags) folders(log *slog.Logger) ([]*spool.Folder, error) {
	var folders []*spool.Folder
	for _, path := range f.snapshots {
		folder, err := spool.OpenFolder(path, spool.FolderOptions{
			ServiceName: f.sinks.getenv("OTEL_SERVICE_NAME"), ResourceAttributes: f.sinks.getenv("OTEL_RESOURCE_ATTRIBUTES"), Logger: log,
		})
		if err != nil {
			return nil, usage(err)
		}
		folders = append(folders, folder)
	}
	return folders, nil
}

// spoolPlace is the spool of one run.
type spoolPlace struct {
	spool   *spool.Spool
	private bool
	since   uint64 // start ticks of this program: the job's processes have later ones
}

func (f *runFlags) openSpool(log *slog.Logger) (*spoolPlace, error) {
	path := f.shim.spool
	if path == "" {
		path = os.Getenv("HEAPWIRE_SPOOL")
	}
	place := &spoolPlace{private: path == ""}
	var err error
	if place.private {
		path, err = os.MkdirTemp("", "heapwire-run-")
	} else {
		err = os.MkdirAll(path, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("making the spool: %w", err)
	}
	if place.since, err = spool.StartTicks(os.Getpid()); err != nil {
		log.Debug("reading our own start", "error", err)
	}
	place.spool, err = spool.Open(path, spool.Options{Logger: log})
	return place, err
}

// remove removes a private spool, if nothing is left in it.
func (p *spoolPlace) remove() error {
	if !p.private {
		return nil
	}
	return os.Remove(p.spool.Path())
}

// awaitDeaths gives the job's helpers, which end when they see that it has ended, the time to write their last dumps.
func (p *spoolPlace) awaitDeaths(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for p.private && len(p.spool.Alive()) > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// none stands in when no sink could be made: the job is profiled for the summary alone.
type none struct{}

func (none) Name() string                             { return "none" }
func (none) Export(context.Context, *sink.Item) error { return nil }
func (none) Close(context.Context) error              { return nil }

func orNone(sinks []sink.Sink) []sink.Sink {
	if len(sinks) == 0 {
		return []sink.Sink{none{}}
	}
	return sinks
}
