// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v7"

	"github.com/heapwire/heapwire/exporter/sink"
	"github.com/heapwire/heapwire/exporter/spool"
)

// worker feeds one sink, in the order in which dumps were found. Its queue holds names only; see the package comment.
//
// It is the circuit breaker too: one dump at a time is tried, and the waits between tries grow over all of them until the
// sink accepts something, so that a dead endpoint is asked once in Retry.Max, however much waits for it.
type worker struct {
	p      *Pipeline
	sink   sink.Sink      // nil: takes events only
	events sink.EventSink // nil: takes dumps only
	name   string
	key    string // names sink and destination where deliveries are noted
	ended  chan struct{}

	mu      sync.Mutex
	queue   []*entry
	arrived chan struct{} // has a token while the queue may hold something
	over    bool

	stats SinkStats // guarded by p.mu
	told  bool      // an outage was said; the worker's own, as are the following
	waits *backoff.ExponentialBackOff
	// successes counts what the sink accepted, so that a dump that fails while others pass is known for the culprit.
	successes int
	strikes   map[*entry]strike
	refused   map[*entry]error // for dumps of several parts: why the sink refused one for good
}

// strike notes how often a dump failed, and the successes at that time.
type strike struct{ count, successes int }

// maxStrikes is how often a dump may fail for Retry.Patience, with another accepted in between, before it is given up.
const maxStrikes = 3

type closer interface {
	Name() string
	Close(ctx context.Context) error
}

func newWorker(p *Pipeline, s sink.Sink, events sink.EventSink) *worker {
	w := &worker{p: p, sink: s, events: events, ended: make(chan struct{}), arrived: make(chan struct{}, 1), strikes: map[*entry]strike{}, refused: map[*entry]error{}}
	w.name = w.any().Name()
	w.stats.Name, w.stats.EventsOnly = w.name, s == nil
	w.waits = backoff.NewExponentialBackOff()
	w.waits.InitialInterval, w.waits.MaxInterval = p.cfg.Retry.Initial, p.cfg.Retry.Max
	w.waits.Reset()
	return w
}

func (w *worker) any() closer {
	if w.sink != nil {
		return w.sink
	}
	return w.events
}

// keyOf names a sink with its destination, but does not tell it: addresses may hold secrets.
func keyOf(s closer) string {
	a, ok := s.(sink.Addressed)
	if !ok {
		return s.Name()
	}
	sum := sha256.Sum256([]byte(a.Destination()))
	return s.Name() + ":" + hex.EncodeToString(sum[:4])
}

func (w *worker) offer(e *entry) {
	w.mu.Lock()
	w.queue = append(w.queue, e)
	w.mu.Unlock()
	w.wake()
}

func (w *worker) wake() {
	select {
	case w.arrived <- struct{}{}:
	default:
	}
}

func (w *worker) end() {
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	w.wake()
}

func (w *worker) waiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.queue)
}

// next waits for a dump; nil means the end.
func (w *worker) next() *entry {
	for {
		w.mu.Lock()
		over := w.over
		var e *entry
		if !over && len(w.queue) > 0 {
			e, w.queue = w.queue[0], w.queue[1:]
		}
		w.mu.Unlock()
		if over || e != nil {
			return e
		}
		<-w.arrived
	}
}

// aside lets the next dump go first, and returns false if there is none.
func (w *worker) aside(e *entry) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		return false
	}
	w.queue = append([]*entry{w.queue[0], e}, w.queue[1:]...)
	return true
}

func (w *worker) work() {
	defer close(w.ended)
	for e := w.next(); e != nil; e = w.next() {
		if w.deliver(e) {
			delete(w.strikes, e)
			delete(w.refused, e)
			w.p.settle(e, w)
		}
	}
}

// wanted says whether the sink still has to get e, and with begin, that an attempt is about to be made.
func (w *worker) wanted(e *entry, begin bool) bool {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	if e.open[w] && begin {
		e.busy++
	}
	return e.open[w]
}

// deliver returns false if the dump must stay in the spool, for another turn or for another reader.
func (w *worker) deliver(e *entry) bool {
	p := w.p
	policy := p.cfg.Retry
	turn := time.Now()
	for tries := 0; ; tries++ {
		if p.run.Err() != nil {
			return false
		}
		// A sink that is down gives up what is overdue without a try each, or a long outage would never be caught up.
		if w.isDown() && e.age() > policy.MaxElapsed {
			w.giveUp(e, fmt.Errorf("waited %v for a sink that is down", e.age().Round(time.Second)), false)
			return true
		}
		if !w.wanted(e, true) {
			return true
		}
		err := w.attempt(e)
		p.mu.Lock()
		e.busy--
		p.mu.Unlock()
		var later *sink.RetryAfterError
		switch {
		case err == nil:
			w.accepted(e)
			return true
		case sink.IsPermanent(err):
			w.giveUp(e, err, true)
			return true
		case errors.As(err, new(*unreadableError)):
			w.giveUp(e, err, false)
			return true
		case p.run.Err() != nil:
			w.failed(err)
			return false
		case e.age() > policy.MaxElapsed:
			w.giveUp(e, err, false)
			return true
		}
		wait := w.waits.NextBackOff()
		if errors.As(err, &later) {
			wait = max(later.Delay, 0)
		}
		w.failed(err)
		p.mu.Lock()
		w.stats.Retries++
		p.mu.Unlock()
		w.tell(fmt.Sprintf("sink %s failed, trying again in %v: %v", w.name, wait.Round(time.Millisecond), err))
		if time.Since(turn) > policy.Patience {
			if w.struck(e) {
				w.giveUp(e, fmt.Errorf("failed %d times while others were accepted: %w", maxStrikes, err), false)
				return true
			}
			if w.wait(wait); w.aside(e) {
				return false
			}
			turn = time.Now()
			continue
		}
		w.wait(wait)
	}
}

// struck counts a failure of a dump that was tried for long, and says whether that was once too often.
func (w *worker) struck(e *entry) bool {
	s := w.strikes[e]
	if s.count == 0 || w.successes > s.successes {
		s = strike{s.count + 1, w.successes}
		w.strikes[e] = s
	}
	return s.count >= maxStrikes
}

// wait waits, but not for long once Shutdown has begun: then every wait is cut to the tenth, a second at most.
func (w *worker) wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return
	case <-w.p.run.Done():
		return
	case <-w.p.hurry:
	}
	short := time.NewTimer(min(d/10, time.Second))
	defer short.Stop()
	select {
	case <-short.C:
	case <-timer.C:
	case <-w.p.run.Done():
	}
}

func (w *worker) accepted(e *entry) {
	w.p.mu.Lock()
	switch {
	case e.event != nil:
		w.stats.Events++
	case w.sink != nil:
		w.stats.Accepted++
		w.stats.Bytes += e.dump.Size
	}
	w.stats.Down = false
	w.p.mu.Unlock()
	if w.told {
		w.p.log.Info("sink accepts again", "sink", w.name)
	}
	w.told = false
	w.waits.Reset()
	w.successes++
}

func (w *worker) giveUp(e *entry, err error, refused bool) {
	w.failed(err)
	w.p.mu.Lock()
	w.stats.GivenUp++
	if refused {
		w.stats.Refused++
		e.refused = strings.TrimPrefix(e.refused+"\n"+fmt.Sprintf("sink %s refused it: %v", w.name, err), "\n")
	}
	w.p.mu.Unlock()
	w.tell(fmt.Sprintf("sink %s gave up dump %s: %v", w.name, e.path(), err))
}

// tell says the first failure since the sink last accepted something; the rest is counted.
func (w *worker) tell(text string) {
	if w.told {
		w.p.log.Debug(text)
		return
	}
	w.told = true
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	w.p.warn(text)
}

func (w *worker) failed(err error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	w.stats.Down = true
	w.stats.LastError = err
}

func (w *worker) isDown() bool {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.stats.Down
}

// unreadableError is a failure to read the dump again.
type unreadableError struct{ err error }

func (e *unreadableError) Error() string { return e.err.Error() }
func (e *unreadableError) Unwrap() error { return e.err }

// attempt offers the sink what it has not yet accepted of a dump. A part that it refuses for good keeps no other from it,
// and makes the dump refused in the end.
func (w *worker) attempt(e *entry) error {
	if e.event != nil {
		return w.try(func(ctx context.Context) error { return w.events.ExportEvent(ctx, e.event) })
	}
	parts, err := w.p.partsOf(e)
	if err != nil {
		return &unreadableError{err}
	}
	var sends []func(context.Context) error
	var names []string
	if w.sink != nil {
		for i, it := range parts.Items {
			sends = append(sends, func(ctx context.Context) error { return w.sink.Export(ctx, it) })
			names = append(names, parts.Names[i])
		}
	}
	if w.events != nil {
		for i, ev := range parts.Events {
			sends = append(sends, func(ctx context.Context) error {
				err := w.events.ExportEvent(ctx, ev)
				if err == nil {
					w.p.mu.Lock()
					w.stats.Events++
					w.p.mu.Unlock()
				}
				return err
			})
			names = append(names, parts.Names[len(parts.Items)+i])
		}
	}
	claim := e.process.claim
	for i, send := range sends {
		part := spool.Part(e.dump.Name, names[i])
		if claim.Settled(part, w.key) {
			continue
		}
		switch err := w.try(send); {
		case sink.IsPermanent(err):
			if w.refused[e] == nil {
				w.refused[e] = err
			}
		case err != nil:
			return err
		}
		if i < len(sends)-1 {
			// What follows may fail, or we may be killed: this part is not sent again.
			w.p.complain(claim.Settle(part, w.key))
		}
	}
	return w.refused[e]
}

// try keeps a fault in a sink from ending the program that hosts the pipeline.
func (w *worker) try(send func(context.Context) error) (err error) {
	began := time.Now()
	defer func() {
		if fault := recover(); fault != nil {
			err = sink.Permanent(fmt.Errorf("fault in the sink: %v", fault))
		}
		w.p.meters.delivered(w.name, time.Since(began), err)
	}()
	ctx, cancel := context.WithTimeout(w.p.run, w.p.cfg.Retry.Attempt)
	defer cancel()
	return send(ctx)
}

// oldest is when the dump that has waited longest was taken, the zero time if none waits. It is called with p.mu held.
func (p *Pipeline) oldest() time.Time {
	var oldest time.Time
	for _, proc := range p.processes {
		for _, e := range proc.entries {
			if !e.done && e.event == nil && (oldest.IsZero() || e.dump.ModTime.Before(oldest)) {
				oldest = e.dump.ModTime
			}
		}
	}
	return oldest
}
