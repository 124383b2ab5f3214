// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v7"
	"github.com/spf13/cobra"

	"github.com/heapwire/heapwire/convert/symbol"
	"github.com/heapwire/heapwire/convert/torchmem"
	"github.com/heapwire/heapwire/exporter"
	"github.com/heapwire/heapwire/exporter/sink"
)

func newPush() *cobra.Command {
	var (
		f       sinkFlags
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "push INPUT...",
		Short: "Send files made earlier to the sinks",
		Long: `Push sends heap dumps, memory snapshots and pprof profiles, also compressed, to the sinks that the standard variables or
the flags name. Of a folder it sends all of these that are in it and in folders below it.

A dump in a process folder of a spool is sent as that process's; any other input as OTEL_SERVICE_NAME's. Of a snapshot every
view of every device is sent, and, by OTLP, a log record for each out-of-memory error and the figures of the allocator; rank, pid
and step come from the JSON beside it and from names such as step4/torch_memory_rank0_pid4242.pickle (verl) or
oom_snapshot_4242_20260908101112.pickle (torch_npu).`,
		Example: "  heapwire push --pyroscope http://localhost:4040 spool/*/*.heap\n  heapwire push --otlp-endpoint http://localhost:4318 snapshots/",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("no input")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			log := newLogger(cmd.ErrOrStderr(), slog.LevelInfo)
			to, err := f.open(log)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			err = push(ctx, cmd, to, args)
			close := func(s interface {
				Name() string
				Close(context.Context) error
			}) {
				if closed := s.Close(ctx); closed != nil {
					err = errors.Join(err, fmt.Errorf("closing sink %s: %w", s.Name(), closed))
				}
			}
			for _, s := range slices.Concat(to.Profiles, to.Figures) {
				close(s)
			}
			for _, s := range to.Events {
				close(s)
			}
			return err
		},
	}
	f.register(cmd.Flags())
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "longest time for all together")
	return cmd
}

// push goes on after a failure, so that one bad file costs itself only.
func push(ctx context.Context, cmd *cobra.Command, to opened, paths []string) error {
	symbols := &symbol.Resolver{}
	sent, failed := 0, 0
	fail := func(format string, args ...any) {
		failed++
		fmt.Fprintf(cmd.ErrOrStderr(), "heapwire: %s\n", oneLine(fmt.Sprintf(format, args...)))
	}
	told := map[string]bool{}
	for _, path := range paths {
		files, err := below(path)
		if err != nil {
			fail("%v", err)
			continue
		}
		for _, file := range files {
			in, err := readInput(file, cmd.InOrStdin(), symbols, newProgress(cmd.ErrOrStderr()))
			if err != nil {
				fail("%v", err)
				continue
			}
			for _, w := range in.warnings {
				fmt.Fprintf(cmd.ErrOrStderr(), "heapwire: warning: %s\n", oneLine(w))
			}
			parts, sinks := &exporter.Parts{}, to.Profiles
			if in.snapshot == nil {
				parts.Items = []*sink.Item{itemOf(in)}
			} else {
				// Gauges are a snapshot's only here: those of heap dumps are told when they are fresh.
				sinks = slices.Concat(to.Profiles, to.Figures)
				if parts, err = partsOf(in, told); err != nil {
					fail("%s: %v", file, err)
					continue
				}
			}
			for _, s := range sinks {
				before := failed
				for _, item := range parts.Items {
					if err := deliver(ctx, func() error { return s.Export(ctx, item) }); err != nil {
						fail("sending %s to %s: %v", file, s.Name(), err)
					}
				}
				if failed == before {
					sent++
				}
			}
			for _, s := range to.Events {
				for _, ev := range parts.Events {
					if err := deliver(ctx, func() error { return s.ExportEvent(ctx, ev) }); err != nil {
						fail("sending %s to %s: %v", file, s.Name(), err)
					}
				}
			}
		}
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "heapwire: %d delivered, %d failed\n", sent, failed)
	if failed > 0 {
		return &statusError{status: exitFailure}
	}
	return nil
}

// below gives the files that push sends of a folder, in the order of their names; a file is itself.
func below(path string) ([]string, error) {
	info, err := os.Stat(path)
	if path == "-" || err != nil || !info.IsDir() {
		return []string{path}, nil // reading it says what is wrong
	}
	var files []string
	err = filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		plain := strings.TrimSuffix(strings.TrimSuffix(entry.Name(), ".zst"), ".gz")
		known := torchmem.IsFileName(plain, false) || slices.Contains([]string{".heap", ".pb", ".pprof"}, filepath.Ext(plain))
		if entry.Type().IsRegular() && known && !strings.HasPrefix(entry.Name(), ".") {
			files = append(files, file)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("looking into %s: %w", path, err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: holds no heap dump (.heap), snapshot (.pickle, .pkl) or profile (.pb.gz)", path)
	}
	return files, nil
}

// partsOf makes of a snapshot what the pipeline would have made. told has the errors that snapshots before it have told.
func partsOf(in *input, told map[string]bool) (*exporter.Parts, error) {
	path, err := filepath.Abs(in.path)
	if err != nil {
		return nil, err
	}
	var size int64
	modified := time.Now()
	if info, err := os.Stat(in.path); err == nil && in.path != "-" {
		size, modified = info.Size(), info.ModTime()
	}
	dir, name := filepath.Split(path)
	id, inSpool := identityIn(filepath.Clean(dir))
	if !inSpool {
		id = ownIdentity()
	}
	from := exporter.FileSource(id, path, size, modified, time.Now())
	if inSpool {
		from.Process = folderName(id)
		from.Base = strings.TrimLeft(unsafeInName.ReplaceAllString(torchmem.Stem(name), "_"), ".")
		if m := dumpFile.FindStringSubmatch(name); m != nil {
			from.Seq, _ = strconv.ParseUint(m[1], 10, 64)
			from.Base, from.Reason = m[1]+"."+m[2], m[2]
			from.ID = func(kind, view string) [16]byte {
				return sink.ProfileID(id.Host, id.PID, id.StartTicks, from.Seq, kind, view)
			}
		}
	}
	from.Sidecar = in.sidecar
	from.First = func(key string, newest bool) bool {
		first := newest || !told[key]
		told[key] = true
		return first
	}
	return exporter.SnapshotParts(in.snapshot, from)
}

func folderName(id sink.Identity) string {
	return fmt.Sprintf("%s-%d-%d", unsafeInName.ReplaceAllString(id.Host, "_"), id.PID, id.StartTicks)
}

// ownIdentity is whose a file is that nobody else has signed.
func ownIdentity() sink.Identity {
	host, _ := os.Hostname()
	return sink.ProcessJSON{
		Host: host, ServiceName: os.Getenv("OTEL_SERVICE_NAME"), ResourceAttributes: os.Getenv("OTEL_RESOURCE_ATTRIBUTES"),
	}.Identity()
}

func deliver(ctx context.Context, send func() error) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := send()
		var later *sink.RetryAfterError
		switch {
		case err == nil:
			return struct{}{}, nil
		case sink.IsPermanent(err):
			err = backoff.Permanent(err)
		case errors.As(err, &later):
			err = backoff.RetryAfter(later.Delay, err)
		}
		return struct{}{}, err
	}, backoff.WithMaxTries(5))
	if gaveUp := backoff.AsRetryError(err); gaveUp != nil {
		return gaveUp.LastErr
	}
	return err
}

var (
	dumpFile     = regexp.MustCompile(`^([0-9]{6,19})\.([a-z][a-z0-9_-]*)\.`)
	unsafeInName = regexp.MustCompile(`[^A-Za-z0-9._-]`)
)

// itemOf dresses an input as the pipeline would have: the process from the folder, sequence and reason from the name.
func itemOf(in *input) *sink.Item {
	dir, name := filepath.Split(in.path)
	it := &sink.Item{
		Process: "push", Base: strings.TrimLeft(unsafeInName.ReplaceAllString(stem(name), "_"), "."), Reason: in.meta.Reason, Seq: in.meta.Seq,
		Time: in.time(), Duration: in.meta.Interval, Kind: "host", View: "live", Profile: in.profile, Figures: in.meta.Figures,
	}
	if it.Time.IsZero() {
		if info, err := os.Stat(in.path); err == nil {
			it.Time = info.ModTime()
		} else {
			it.Time = time.Now()
		}
	}
	if it.Base == "" {
		it.Base = "profile"
	}
	if m := dumpFile.FindStringSubmatch(name); m != nil && it.Reason == "" {
		it.Seq, _ = strconv.ParseUint(m[1], 10, 64)
		it.Reason = m[2]
	}
	id, ok := identityIn(filepath.Clean(dir))
	if ok {
		it.Process = folderName(id)
	} else {
		id = ownIdentity()
	}
	it.Identity = id
	it.ProfileID = sink.ProfileID(id.Host+"/"+in.path, id.PID, id.StartTicks, it.Seq, it.Kind, it.View)
	if ok {
		it.ProfileID = sink.ProfileID(id.Host, id.PID, id.StartTicks, it.Seq, it.Kind, it.View)
	}
	return it
}

// stem is a file's name without the suffixes that tell its format.
func stem(name string) string {
	for {
		cut := name
		for _, suffix := range []string{".gz", ".zst", ".heap", ".pb", ".pprof"} {
			cut = strings.TrimSuffix(cut, suffix)
		}
		if cut == name {
			return name
		}
		name = cut
	}
}
