// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/heapwire/heapwire/convert"
	"github.com/heapwire/heapwire/convert/pickle"
	"github.com/heapwire/heapwire/convert/torchmem"
	"github.com/heapwire/heapwire/exporter/sink"
	"github.com/heapwire/heapwire/exporter/spool"
)

const (
	hostKind = "host"
	liveView = "live"
)

// readError is a failure of the disk, not of what is on it.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

// diskReader remembers that reading failed, whatever a parser makes of it. It fails when stop ends: a large file takes a while.
type diskReader struct {
	r      io.Reader
	stop   context.Context
	failed error
}

func (d *diskReader) Read(b []byte) (int, error) {
	if d.failed = d.stop.Err(); d.failed != nil {
		return 0, d.failed
	}
	n, err := d.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		d.failed = err
	}
	return n, err
}

// partsOf gives the converted dump, from the cache or anew.
func (p *Pipeline) partsOf(e *entry) (*Parts, error) {
	e.convert.Lock()
	defer e.convert.Unlock()
	if parts := p.converted.get(e); parts != nil {
		return parts, nil
	}
	parts, warnings, err := p.load(e)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	for _, w := range warnings {
		p.note(slog.LevelInfo, e.path()+": "+strings.TrimPrefix(w, e.path()+": "))
	}
	p.mu.Unlock()
	p.converted.put(e, parts)
	return parts, nil
}

func (p *Pipeline) load(e *entry) (parts *Parts, warnings []string, err error) {
	if e.dump.Kind != "" || e.process.folder != nil {
		return p.loadSnapshot(e)
	}
	f, err := e.process.claim.Open(e.dump)
	if err != nil {
		if errors.Is(err, spool.ErrTooLarge) {
			return nil, nil, err
		}
		return nil, nil, &readError{err}
	}
	defer f.Close()
	reader := &diskReader{r: f, stop: p.run}
	heap, err := p.convert(reader, e.path())
	if reader.failed != nil {
		return nil, nil, &readError{fmt.Errorf("reading dump %s: %w", e.path(), reader.failed)}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("converting dump %s: %w", e.path(), err)
	}
	p.mu.Lock()
	id := e.process.identity
	p.mu.Unlock()
	return &Parts{Items: []*sink.Item{itemOf(e, id, heap)}, Names: []string{liveView}}, heap.Warnings, nil
}

// loadSnapshot reads a snapshot from front to back, however large it is. Several at a time are bounded by [Pipeline.slots].
func (p *Pipeline) loadSnapshot(e *entry) (parts *Parts, warnings []string, err error) {
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-p.run.Done():
		return nil, nil, &readError{p.run.Err()}
	}
	claim := e.process.claim
	from := p.snapshotSource(e)
	text, err := claim.ReadSidecar(e.dump)
	if err == nil {
		var odd error
		if from.Sidecar, odd = torchmem.ParseSidecar(text); odd != nil {
			warnings = append(warnings, e.path()+": the JSON beside it: "+strings.ReplaceAll(odd.Error(), "\n", "; "))
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		warnings = append(warnings, err.Error())
	}
	if e.dump.Alone() {
		if from.Sidecar == nil {
			return nil, nil, err
		}
		parts, err = SnapshotParts(nil, from)
		return parts, warnings, err
	}
	f, err := claim.Open(e.dump)
	if err != nil {
		if errors.Is(err, spool.ErrTooLarge) {
			return nil, nil, err
		}
		return nil, nil, &readError{err}
	}
	defer f.Close()
	reader := &diskReader{r: f, stop: p.run}
	snapshot, parts, err := convertSnapshot(reader, e.path(), from)
	switch {
	case reader.failed != nil:
		return nil, nil, &readError{fmt.Errorf("reading dump %s: %w", e.path(), reader.failed)}
	case err != nil && e.process.folder != nil && errors.Is(err, pickle.ErrTruncated), err == nil && e.process.folder != nil && snapshot.Report.Truncated:
		// It is still being written, though it looked complete.
		e.process.folder.Incomplete(e.dump)
		return nil, nil, &readError{fmt.Errorf("reading dump %s: it is not complete yet", e.path())}
	case err != nil:
		return nil, nil, fmt.Errorf("converting dump %s: %w", e.path(), err)
	}
	return parts, append(warnings, snapshot.Report.Warnings()...), nil
}

func convertSnapshot(r io.Reader, name string, from SnapshotSource) (s *torchmem.Snapshot, parts *Parts, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			s, parts, err = nil, nil, fmt.Errorf("fault in the converter: %v", fault)
		}
	}()
	s, err = torchmem.Read(r, torchmem.Options{Name: name, Kind: from.Kind, Time: from.Time, Sidecar: from.Sidecar})
	if err == nil {
		parts, err = SnapshotParts(s, from)
	}
	return s, parts, err
}

// snapshotSource says of a snapshot what the process's folder, or the file's name, tells.
func (p *Pipeline) snapshotSource(e *entry) SnapshotSource {
	p.mu.Lock()
	defer p.mu.Unlock()
	proc, d := e.process, e.dump
	id := proc.identity
	from := SnapshotSource{
		Item: sink.Item{Identity: id, Process: proc.claim.Name(), Seq: d.Seq, Reason: d.Reason, Time: d.ModTime},
		Kind: d.Kind, FileName: torchmem.FileName{Rank: -1, PID: -1, Step: -1}, Observed: p.cfg.now(),
		ID: func(kind, view string) [16]byte {
			return sink.ProfileID(id.Host, id.PID, id.StartTicks, d.Seq, kind, view)
		},
	}
	from.Base = strings.TrimSuffix(strings.TrimSuffix(d.Name, filepath.Ext(d.Name)), "."+d.Kind)
	if proc.folder != nil {
		from = namedSource(proc.folder.FileName(d.Path), id, d.Path, d.Size, d.ModTime, p.cfg.now())
		for _, other := range p.seen {
			// The process itself knows best who it is.
			if pid := int(from.FileName.PID); other.folder == nil && pid > 0 && other.identity.PID == pid && other.identity.Host == id.Host {
				from.Identity = other.identity
			}
		}
	}
	from.First = func(key string, newest bool) bool { return p.tells(proc, key, d.Name, newest) }
	return from
}

// tells says whether a dump is the one to tell of an error, and notes for the next reader that it is.
func (p *Pipeline) tells(proc *process, key, dump string, newest bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return proc.memo.Told.first(key, dump, newest)
}

// convert keeps a fault in the converter from ending the program that hosts the pipeline.
func (p *Pipeline) convert(r io.Reader, name string) (heap *convert.Heap, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			heap, err = nil, fmt.Errorf("fault in the converter: %v", fault)
		}
	}()
	heap, err = p.cfg.Convert(r, name)
	if err == nil && (heap == nil || heap.Profile == nil) {
		err = errors.New("no profile")
	}
	return heap, err
}

func itemOf(e *entry, id sink.Identity, heap *convert.Heap) *sink.Item {
	it := &sink.Item{
		Identity: id, Process: e.process.claim.Name(), Base: strings.TrimSuffix(e.dump.Name, ".heap"),
		Seq: e.dump.Seq, Reason: e.dump.Reason, Time: heap.Meta.Time, Duration: heap.Meta.Interval,
		Kind: hostKind, View: liveView, Profile: heap.Profile, Figures: heap.Meta.Figures,
	}
	if heap.Meta.Step != nil {
		it.Figures = maps.Clone(it.Figures)
		if it.Figures == nil {
			it.Figures = map[string]int64{}
		}
		it.Figures["step"] = *heap.Meta.Step
	}
	for _, g := range heap.Giants {
		it.Giants = append(it.Giants, g.Line())
	}
	if it.Time.IsZero() {
		it.Time = e.dump.ModTime
	}
	it.ProfileID = sink.ProfileID(id.Host, id.PID, id.StartTicks, it.Seq, it.Kind, it.View)
	return it
}

// cache holds the profiles converted last, so that sinks that keep step share one conversion.
type cache struct {
	mu      sync.Mutex
	size    int
	entries []*entry
}

func (c *cache) get(e *entry) *Parts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return e.parts
}

func (c *cache) put(e *entry, parts *Parts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.parts = parts
	c.entries = append(c.entries, e)
	if len(c.entries) > c.size {
		c.entries[0].parts = nil
		c.entries = slices.Delete(c.entries, 0, 1)
	}
}

func (c *cache) drop(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.parts = nil
	c.entries = slices.DeleteFunc(c.entries, func(other *entry) bool { return other == e })
}

// age is how long a dump has waited here.
func (e *entry) age() time.Duration { return time.Since(e.found) }
