// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v7"
	"github.com/spf13/cobra"

	"github.com/heapwire/heapwire/convert/symbol"
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
		Long: `Push sends heap dumps and pprof profiles, also compressed, to the sinks that the standard variables or the flags name.
A dump in a process folder of a spool is sent as that process's; any other input as OTEL_SERVICE_NAME's.`,
		Example: "  heapwire push --pyroscope http://localhost:4040 spool/*/*.heap",
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
			err = push(ctx, cmd, to.Profiles, args)
			for _, s := range to.Profiles {
				if closed := s.Close(ctx); closed != nil {
					err = errors.Join(err, fmt.Errorf("closing sink %s: %w", s.Name(), closed))
				}
			}
			return err
		},
	}
	f.register(cmd.Flags())
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "longest time for all together")
	return cmd
}

// push goes on after a failure, so that one bad file costs itself only.
func push(ctx context.Context, cmd *cobra.Command, sinks []sink.Sink, paths []string) error {
	symbols := &symbol.Resolver{}
	sent, failed := 0, 0
	for _, path := range paths {
		in, err := readInput(path, cmd.InOrStdin(), symbols)
		if err != nil {
			failed++
			fmt.Fprintf(cmd.ErrOrStderr(), "heapwire: %s\n", oneLine(err.Error()))
			continue
		}
		for _, w := range in.warnings {
			fmt.Fprintf(cmd.ErrOrStderr(), "heapwire: warning: %s\n", oneLine(w))
		}
		if in.snapshot != nil {
			if err := in.show("", ""); err != nil {
				failed++
				fmt.Fprintf(cmd.ErrOrStderr(), "heapwire: %s\n", oneLine(err.Error()))
				continue
			}
		}
		item := itemOf(in)
		for _, s := range sinks {
			if err := deliver(ctx, s, item); err != nil {
				failed++
				fmt.Fprintf(cmd.ErrOrStderr(), "heapwire: sending %s to %s: %s\n", path, s.Name(), oneLine(err.Error()))
				continue
			}
			sent++
		}
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "heapwire: %d delivered, %d failed\n", sent, failed)
	if failed > 0 {
		return &statusError{status: exitFailure}
	}
	return nil
}

func deliver(ctx context.Context, s sink.Sink, item *sink.Item) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := s.Export(ctx, item)
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
	if in.snapshot != nil {
		it.View = in.snapshot.DefaultView("")
		for _, d := range in.snapshot.Devices {
			if d.Kind != "pinned" {
				it.Kind = d.Kind
				break
			}
		}
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
		it.Process = fmt.Sprintf("%s-%d-%d", unsafeInName.ReplaceAllString(id.Host, "_"), id.PID, id.StartTicks)
	} else {
		host, _ := os.Hostname()
		id = sink.ProcessJSON{
			Host: host, ServiceName: os.Getenv("OTEL_SERVICE_NAME"), ResourceAttributes: os.Getenv("OTEL_RESOURCE_ATTRIBUTES"),
		}.Identity()
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
