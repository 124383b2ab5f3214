// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/heapwire/heapwire/convert"
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

// diskReader remembers that reading failed, whatever a parser makes of it.
type diskReader struct {
	r      io.Reader
	failed error
}

func (d *diskReader) Read(b []byte) (int, error) {
	n, err := d.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		d.failed = err
	}
	return n, err
}

// item gives the converted dump, from the cache or anew.
func (p *Pipeline) item(e *entry) (*sink.Item, error) {
	e.convert.Lock()
	defer e.convert.Unlock()
	if item := p.converted.get(e); item != nil {
		return item, nil
	}
	item, warnings, err := p.load(e)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	for _, w := range warnings {
		p.note(slog.LevelInfo, e.path()+": "+strings.TrimPrefix(w, e.path()+": "))
	}
	p.mu.Unlock()
	p.converted.put(e, item)
	return item, nil
}

func (p *Pipeline) load(e *entry) (item *sink.Item, warnings []string, err error) {
	f, err := e.process.claim.Open(e.dump)
	if err != nil {
		if errors.Is(err, spool.ErrTooLarge) {
			return nil, nil, err
		}
		return nil, nil, &readError{err}
	}
	defer f.Close()
	reader := &diskReader{r: f}
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
	return itemOf(e, id, heap), heap.Warnings, nil
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

func (c *cache) get(e *entry) *sink.Item {
	c.mu.Lock()
	defer c.mu.Unlock()
	return e.item
}

func (c *cache) put(e *entry, item *sink.Item) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.item = item
	c.entries = append(c.entries, e)
	if len(c.entries) > c.size {
		c.entries[0].item = nil
		c.entries = slices.Delete(c.entries, 0, 1)
	}
}

func (c *cache) drop(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.item = nil
	c.entries = slices.DeleteFunc(c.entries, func(other *entry) bool { return other == e })
}

// age is how long a dump has waited here.
func (e *entry) age() time.Duration { return time.Since(e.found) }
