// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v7"

	"github.com/heapwire/heapwire/exporter/sink"
)

// worker feeds one sink, in the order in which dumps were found. Its queue holds names only; see the package comment.
type worker struct {
	p     *Pipeline
	sink  sink.Sink
	ended chan struct{}

	mu      sync.Mutex
	queue   []*entry
	arrived chan struct{} // has a token while the queue may hold something
	over    bool

	stats SinkStats // guarded by p.mu
	down  bool      // the last attempt failed; the worker's own
	told  bool      // and that was said; the worker's own
}

func newWorker(p *Pipeline, s sink.Sink) *worker {
	return &worker{p: p, sink: s, ended: make(chan struct{}), arrived: make(chan struct{}, 1), stats: SinkStats{Name: s.Name()}}
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

func (w *worker) work() {
	defer close(w.ended)
	for e := w.next(); e != nil; e = w.next() {
		if w.deliver(e) {
			w.p.settle(e)
		}
	}
}

// deliver returns false if the dump must stay in the spool for another time.
func (w *worker) deliver(e *entry) bool {
	p := w.p
	if p.run.Err() != nil {
		return false
	}
	// A sink that is down gives up what is overdue without a try each, or a long outage would never be caught up.
	if w.down && e.age() > p.cfg.Retry.MaxElapsed {
		w.giveUp(e, fmt.Errorf("waited %v for a sink that is down", e.age().Round(time.Second)))
		return true
	}
	item, err := p.item(e)
	if err != nil {
		w.giveUp(e, err)
		return true
	}
	err = w.tries(item, e)
	switch {
	case err == nil:
		p.mu.Lock()
		recovered := w.told
		w.stats.Accepted++
		w.stats.Bytes += e.dump.Size
		p.mu.Unlock()
		if recovered {
			p.log.Info("sink accepts again", "sink", w.sink.Name())
		}
		w.down, w.told = false, false
		return true
	case p.run.Err() != nil && !sink.IsPermanent(err):
		return false
	default:
		w.giveUp(e, err)
		return true
	}
}

func (w *worker) giveUp(e *entry, err error) {
	w.failed(err)
	w.p.mu.Lock()
	w.stats.GivenUp++
	w.p.mu.Unlock()
	w.tell(fmt.Sprintf("sink %s gave up dump %s: %v", w.sink.Name(), e.path(), err))
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
	w.down = true
	w.stats.LastError = err
}

// tries offers the item until it is accepted, refused for good, overdue, or out of time.
func (w *worker) tries(item *sink.Item, e *entry) error {
	p := w.p
	patient, cancel := context.WithCancel(p.run)
	defer cancel()
	go func() {
		select {
		case <-p.hurry:
			cancel()
		case <-patient.Done():
		}
	}()
	policy := p.cfg.Retry
	err := w.retry(patient, item, e, policy.Initial, policy.Max)
	if errors.Is(err, context.Canceled) && p.run.Err() == nil && !sink.IsPermanent(err) {
		// Shutdown has begun: what was waiting for its next try gets it now.
		return w.retry(p.run, item, e, min(policy.Initial, 100*time.Millisecond), min(policy.Max, time.Second))
	}
	return err
}

func (w *worker) retry(ctx context.Context, item *sink.Item, e *entry, initial, longest time.Duration) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = initial, longest
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := w.attempt(item)
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
	},
		backoff.WithBackOff(wait),
		backoff.WithMaxElapsedTime(max(w.p.cfg.Retry.MaxElapsed-e.age(), 1)),
		backoff.WithNotify(func(err error, next time.Duration) {
			w.failed(err)
			w.p.mu.Lock()
			w.stats.Retries++
			w.p.mu.Unlock()
			w.tell(fmt.Sprintf("sink %s failed, trying again in %v: %v", w.sink.Name(), next.Round(time.Millisecond), err))
		}))
	if gaveUp := backoff.AsRetryError(err); gaveUp != nil {
		w.failed(gaveUp.LastErr)
		if errors.Is(gaveUp.Cause, backoff.ErrPermanent) {
			return gaveUp.LastErr
		}
		return fmt.Errorf("%w: %w", gaveUp.Cause, gaveUp.LastErr)
	}
	return err
}

// attempt keeps a fault in a sink from ending the program that hosts the pipeline.
func (w *worker) attempt(item *sink.Item) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = sink.Permanent(fmt.Errorf("fault in the sink: %v", fault))
		}
	}()
	ctx, cancel := context.WithTimeout(w.p.run, w.p.cfg.Retry.Attempt)
	defer cancel()
	return w.sink.Export(ctx, item)
}
