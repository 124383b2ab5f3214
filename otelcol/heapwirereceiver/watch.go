// SPDX-License-Identifier: Apache-2.0

package heapwirereceiver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/heapwire/heapwire/convert"
	"github.com/heapwire/heapwire/exporter"
	"github.com/heapwire/heapwire/exporter/sink"
	"github.com/heapwire/heapwire/exporter/spool"
)

// reading is a folder with the pipeline that reads it.
type reading struct{ pipeline *exporter.Pipeline }

// watch looks for folders until ctx ends. What happens in a folder is its pipeline's.
func (r *heapwireReceiver) watch(ctx context.Context) {
	defer close(r.ended)
	tick := time.NewTicker(r.cfg.PollInterval)
	defer tick.Stop()
	for {
		r.tell(r.look(ctx))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// look takes in the folders that are new, and leaves those that have gone.
func (r *heapwireReceiver) look(ctx context.Context) (problems []error) {
	wanted := map[string]func() (exporter.Config, error){}
	for _, glob := range r.cfg.Spools {
		for _, path := range folders(glob) {
			wanted[path] = func() (exporter.Config, error) { return r.ofSpool(path) }
		}
	}
	for _, s := range r.cfg.Snapshots {
		for _, path := range folders(s.Path) {
			if wanted[path] == nil {
				wanted[path] = func() (exporter.Config, error) { return r.ofSnapshots(ctx, path, s) }
			}
		}
	}
	r.mu.Lock()
	for path := range r.reading {
		if wanted[path] == nil {
			r.leave(ctx, path)
		}
	}
	r.mu.Unlock()
	for _, path := range slices.Sorted(maps.Keys(wanted)) {
		r.mu.Lock()
		known := r.reading[path] != nil
		r.mu.Unlock()
		if known || ctx.Err() != nil {
			continue
		}
		cfg, err := wanted[path]()
		var pipeline *exporter.Pipeline
		if err == nil {
			pipeline, err = exporter.New(cfg)
		}
		if err != nil {
			problems = append(problems, err)
			continue
		}
		r.mu.Lock()
		r.reading[path] = &reading{pipeline}
		r.mu.Unlock()
		pipeline.Start()
		r.log.Info("reading", "folder", path)
	}
	return problems
}

// folders gives the folders that a pattern matches now, with absolute paths.
func folders(glob string) []string {
	found, _ := filepath.Glob(glob) // the pattern was looked at by Validate
	var out []string
	for _, path := range found {
		abs, err := filepath.Abs(path)
		if err != nil {
			continue
		}
		if info, err := os.Stat(abs); err == nil && info.IsDir() {
			out = append(out, abs)
		}
	}
	return out
}

func (r *heapwireReceiver) ofSpool(path string) (exporter.Config, error) {
	s, err := spool.Open(path, spool.Options{MaxDumpBytes: r.cfg.MaxFileSize, Poll: r.cfg.PollInterval, Logger: r.log})
	if err != nil {
		return exporter.Config{}, err
	}
	cfg := r.pipeline(&consumers{heapwireReceiver: r, format: "heap"})
	cfg.Spool = s
	return cfg, nil
}

func (r *heapwireReceiver) ofSnapshots(ctx context.Context, path string, s SnapshotsConfig) (exporter.Config, error) {
	var attributes []string
	for _, k := range slices.Sorted(maps.Keys(s.ResourceAttributes)) {
		attributes = append(attributes, url.PathEscape(k)+"="+strings.ReplaceAll(url.PathEscape(s.ResourceAttributes[k]), ",", "%2C"))
	}
	names, err := s.names()
	if err != nil {
		return exporter.Config{}, err
	}
	f, err := spool.OpenFolder(path, spool.FolderOptions{
		Names: names, MaxBytes: r.cfg.MaxFileSize, ServiceName: s.ServiceName, ResourceAttributes: strings.Join(attributes, ","), Logger: r.log,
	})
	if err != nil {
		return exporter.Config{}, err
	}
	delivered, err := openPositions(ctx, r.store, path)
	if err != nil {
		r.log.Warn("snapshots may be handed on again", "folder", path, "error", err)
	}
	cfg := r.pipeline(&consumers{heapwireReceiver: r, format: "snapshot", delivered: delivered})
	cfg.Folders, cfg.Poll = []*spool.Folder{f}, r.cfg.PollInterval
	return cfg, nil
}

func (r *heapwireReceiver) pipeline(to *consumers) exporter.Config {
	cfg := exporter.Config{
		Keep: r.cfg.Keep, Quarantine: true, NoSummary: true, Logger: r.log, Shared: r.meters,
		Limits: spool.Limits{Bytes: r.cfg.MaxSpoolSize, Files: r.cfg.MaxSpoolFiles, Age: r.cfg.MaxAge},
		Retry:  exporter.Retry{MaxElapsed: r.cfg.MaxAge},
		Convert: func(in io.Reader, name string) (*convert.Heap, error) {
			return convert.HeapDump(in, convert.Options{Name: name, Symbols: &r.symbols})
		},
	}
	if r.profiles != nil {
		cfg.Sinks = append(cfg.Sinks, profileSink{to})
	}
	if r.metrics != nil {
		cfg.Sinks = append(cfg.Sinks, metricSink{to})
	}
	if r.logs != nil {
		cfg.Events = append(cfg.Events, logSink{to})
	}
	if len(cfg.Sinks) == 0 {
		cfg.Sinks = append(cfg.Sinks, nowhere{})
	}
	return cfg
}

// nowhere takes the dumps where only log records are asked for.
type nowhere struct{}

func (nowhere) Name() string                             { return "nowhere" }
func (nowhere) Export(context.Context, *sink.Item) error { return nil }
func (nowhere) Close(context.Context) error              { return nil }

// leave ends the reading of a folder. It is called with r.mu held.
func (r *heapwireReceiver) leave(ctx context.Context, path string) {
	one := r.reading[path]
	delete(r.reading, path)
	r.leaving[one] = true
	r.closing.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
		defer cancel()
		if err := one.pipeline.Shutdown(ctx); err != nil && !errors.Is(err, exporter.ErrUndelivered) {
			r.log.Warn("ending the reading of a folder", "folder", path, "error", fmt.Sprint(err))
		}
		stats := one.pipeline.Stats()
		stats.Pending, stats.Oldest = 0, 0
		for i := range stats.Sinks {
			stats.Sinks[i].Down, stats.Sinks[i].Waiting = false, 0
		}
		r.mu.Lock()
		delete(r.leaving, one)
		r.retired.Add(stats)
		r.mu.Unlock()
		r.log.Info("no longer reading", "folder", path)
	})
}
