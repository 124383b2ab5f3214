// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/heapwire/heapwire/convert"
	"github.com/heapwire/heapwire/exporter/sink"
	"github.com/heapwire/heapwire/exporter/spool"
)

// ErrUndelivered is returned by Shutdown when dumps are left in the spool.
var ErrUndelivered = errors.New("not everything was delivered")

// Retry says how long a sink is tried. The zero value has the defaults named at each field.
type Retry struct {
	Initial    time.Duration // first wait, 500 ms; each next is 1.5 times as long, all with jitter of one half
	Max        time.Duration // longest wait, 30 s
	MaxElapsed time.Duration // a dump that no attempt has delivered so long after it was found is given up, 15 min
	Attempt    time.Duration // longest attempt, 60 s
}

// Config says what a pipeline reads and where it sends it.
type Config struct {
	Spool   *spool.Spool
	Sinks   []sink.Sink // at least one
	Convert func(r io.Reader, name string) (*convert.Heap, error)
	Keep    bool // keep delivered dumps in spool.DeliveredFolder, and dumps that cannot be read where they are
	Retry   Retry
	Logger  *slog.Logger // nil: silent
}

// Pipeline carries dumps from a spool to sinks. Make one with [New], begin with Start, end with Shutdown.
type Pipeline struct {
	cfg     Config
	log     *slog.Logger
	workers []*worker

	run    context.Context // ends with the time that Shutdown is given
	stop   context.CancelFunc
	hurry  chan struct{} // closed when Shutdown begins: no long waits any more
	watch  context.CancelFunc
	looked chan struct{} // closed when the watching goroutine has ended
	close  sync.Once
	result error

	scanning  sync.Mutex
	converted *cache

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced when an entry is done
	processes map[string]*process
	seen      []*process // every process ever claimed, in order
	stats     Stats
	said      map[string]bool
	names     map[uint64]named
}

// process is a claimed process folder.
type process struct {
	claim    *spool.Process
	identity sink.Identity
	whole    bool // identity was read without an error
	entries  map[string]*entry
	summary  Process
	history  history
	drainAt  time.Time
}

// entry is a dump on its way.
type entry struct {
	process *process
	dump    spool.Dump
	found   time.Time
	taken   bool // converted, or found unreadable
	waiting int  // sinks that have neither accepted it nor given it up
	done    bool // delivered or given up by all, or unreadable; only its file may be left
	left    bool // unreadable, and its file stays

	convert sync.Mutex
	item    *sink.Item
}

func (e *entry) path() string { return filepath.Join(e.process.claim.Path(), e.dump.Name) }

// New checks a configuration. Nothing is read before Start.
func New(cfg Config) (*Pipeline, error) {
	switch {
	case cfg.Spool == nil:
		return nil, errors.New("making a pipeline: no spool")
	case len(cfg.Sinks) == 0:
		return nil, errors.New("making a pipeline: no sink")
	case cfg.Convert == nil:
		return nil, errors.New("making a pipeline: no converter")
	}
	cfg.Retry = cfg.Retry.withDefaults()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Pipeline{
		cfg: cfg, log: cfg.Logger, hurry: make(chan struct{}), looked: make(chan struct{}),
		changed: make(chan struct{}), processes: map[string]*process{}, said: map[string]bool{}, names: map[uint64]named{},
		converted: &cache{size: len(cfg.Sinks) + 1},
	}
	p.run, p.stop = context.WithCancel(context.Background())
	for _, s := range cfg.Sinks {
		p.workers = append(p.workers, newWorker(p, s))
	}
	return p, nil
}

func (r Retry) withDefaults() Retry {
	set := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	set(&r.Initial, 500*time.Millisecond)
	set(&r.Max, 30*time.Second)
	set(&r.MaxElapsed, 15*time.Minute)
	set(&r.Attempt, time.Minute)
	return r
}

// Start begins to watch the spool and to deliver. It does not block.
func (p *Pipeline) Start() {
	watch, cancel := context.WithCancel(p.run)
	p.watch = cancel
	for _, w := range p.workers {
		go w.work()
	}
	go func() {
		defer close(p.looked)
		// A burst of events is one look: listing hundreds of folders has its price.
		const pause = 100 * time.Millisecond
		for range p.cfg.Spool.Changes(watch) {
			p.look(watch)
			select {
			case <-watch.Done():
			case <-time.After(pause):
			}
		}
	}()
}

// Shutdown looks at the spool once more, delivers what it finds until ctx ends, and closes the sinks. What could not be
// delivered stays in the spool and makes it return [ErrUndelivered]. It may be called again, and without Start.
func (p *Pipeline) Shutdown(ctx context.Context) error {
	p.close.Do(func() { p.result = p.shutdown(ctx) })
	return p.result
}

func (p *Pipeline) shutdown(ctx context.Context) error {
	var errs []error
	close(p.hurry)
	if p.watch != nil {
		p.watch()
		if ends(ctx, p.looked) {
			p.look(ctx)
		}
		if left := p.await(ctx); left > 0 {
			errs = append(errs, fmt.Errorf("%w: %d left in %s", ErrUndelivered, left, p.cfg.Spool.Path()))
		}
	}
	p.stop()
	for _, w := range p.workers {
		w.end()
		// A sink that does not heed its context is left behind.
		if p.watch != nil {
			ends(ctx, w.ended)
		}
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		if err := w.sink.Close(closing); err != nil {
			errs = append(errs, fmt.Errorf("closing sink %s: %w", w.sink.Name(), err))
		}
		cancel()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, proc := range p.processes {
		p.drain(proc)
	}
	for _, proc := range p.processes {
		proc.summary.Left = why(proc)
		errs = append(errs, proc.claim.Release())
	}
	return errors.Join(errs...)
}

// ends waits for the end of a goroutine that was told to end, and a little longer than ctx.
func ends(ctx context.Context, ended <-chan struct{}) bool {
	select {
	case <-ended:
		return true
	case <-ctx.Done():
	}
	select {
	case <-ended:
		return true
	case <-time.After(100 * time.Millisecond):
		return false
	}
}

// await waits until every dump found is done, and returns how many are not.
func (p *Pipeline) await(ctx context.Context) int {
	for {
		p.mu.Lock()
		left, changed := p.stats.Pending, p.changed
		p.mu.Unlock()
		if left == 0 {
			return 0
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return left
		}
	}
}

// look takes in what is new in the spool.
func (p *Pipeline) look(ctx context.Context) {
	p.scanning.Lock()
	defer p.scanning.Unlock()
	folders, err := p.cfg.Spool.Processes()
	p.complain(err)
	p.mu.Lock()
	for name, proc := range p.processes {
		if !slices.Contains(folders, name) {
			p.forget(name, proc, "its folder has gone")
		}
	}
	p.mu.Unlock()
	for _, name := range folders {
		proc := p.claim(name)
		if proc == nil {
			continue
		}
		dumps, err := proc.claim.Dumps()
		p.complain(err)
		for _, e := range p.enter(proc, dumps) {
			// Without time to convert them, they are counted at least.
			if ctx.Err() == nil {
				p.take(e)
			}
		}
		p.mu.Lock()
		p.retire(proc, dumps)
		if now := time.Now(); now.After(proc.drainAt) {
			const between = 2 * time.Second
			proc.drainAt = now.Add(between)
			p.drain(proc)
		}
		p.mu.Unlock()
	}
}

func (p *Pipeline) claim(name string) *process {
	p.mu.Lock()
	proc := p.processes[name]
	p.mu.Unlock()
	if proc == nil {
		claim, err := p.cfg.Spool.Claim(name)
		if errors.Is(err, spool.ErrClaimed) {
			p.log.Debug("left to another reader", "folder", name)
			return nil
		}
		if err != nil {
			p.complain(err)
			return nil
		}
		proc = &process{claim: claim, entries: map[string]*entry{}, summary: Process{Folder: name}}
		p.mu.Lock()
		p.processes[name] = proc
		p.seen = append(p.seen, proc)
		p.mu.Unlock()
	}
	return proc
}

// enter makes entries for the dumps that are new.
func (p *Pipeline) enter(proc *process, dumps []spool.Dump) []*entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []*entry
	for _, d := range dumps {
		if e, known := proc.entries[d.Name]; known {
			if !e.taken {
				found = append(found, e)
			}
			continue
		}
		e := &entry{process: proc, dump: d, found: time.Now(), waiting: len(p.workers)}
		proc.entries[d.Name] = e
		p.stats.Dumps++
		p.stats.Pending++
		proc.summary.Dumps++
		found = append(found, e)
	}
	if len(found) > 0 && !proc.whole {
		read, err := proc.claim.Identity()
		if err != nil {
			p.warn(err.Error())
		}
		proc.identity, proc.whole = read.Identity(), err == nil
		proc.summary.Identity = proc.identity
	}
	return found
}

// take converts a new dump for the first time and offers it to the sinks.
func (p *Pipeline) take(e *entry) {
	began := time.Now()
	item, err := p.item(e)
	var now snapshot
	if err == nil && item.Kind == hostKind {
		now = snapshotOf(item.Profile)
	}
	p.mu.Lock()
	e.taken = true
	p.stats.ConvertTime += time.Since(began)
	switch {
	case errors.As(err, new(*readError)):
		// Not the dump's fault: it is looked at again.
		p.stats.ReadFailed++
		p.stats.Dumps--
		p.stats.Pending--
		e.process.summary.Dumps--
		delete(e.process.entries, e.dump.Name)
		p.warn(err.Error())
		p.signal()
		p.mu.Unlock()
		return
	case err != nil:
		p.stats.ConvertFailed++
		p.warn(err.Error())
		p.finish(e)
		p.mu.Unlock()
		p.setAside(e, err)
		return
	}
	p.stats.Converted++
	s := &e.process.summary
	s.Last, s.Reason = item.Time, item.Reason
	if item.Kind == hostKind {
		s.Live = now.live
		p.remember(e.process, now)
	}
	p.mu.Unlock()
	for _, w := range p.workers {
		w.offer(e)
	}
}

func (p *Pipeline) setAside(e *entry, why error) {
	if !p.cfg.Keep {
		err := e.process.claim.Reject(e.dump, why.Error())
		if err == nil {
			return
		}
		p.complain(err)
	}
	p.mu.Lock()
	e.left = true
	p.mu.Unlock()
}

// settle notes that one sink is done with a dump.
func (p *Pipeline) settle(e *entry) {
	p.mu.Lock()
	e.waiting--
	last := e.waiting == 0
	p.mu.Unlock()
	if !last {
		return
	}
	p.converted.drop(e)
	err := e.process.claim.Acknowledge(e.dump, p.cfg.Keep)
	p.complain(err)
	p.mu.Lock()
	if err != nil {
		p.stats.AcknowledgeFailed++
	}
	p.finish(e)
	p.mu.Unlock()
}

// finish is called with p.mu held.
func (p *Pipeline) finish(e *entry) {
	e.done = true
	p.stats.Pending--
	p.signal()
}

// signal is called with p.mu held.
func (p *Pipeline) signal() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// retire forgets entries whose file has gone, and tries again to remove those whose file should have. It is called with
// p.mu held.
func (p *Pipeline) retire(proc *process, dumps []spool.Dump) {
	for name, e := range proc.entries {
		if !e.done || e.left {
			continue
		}
		if slices.ContainsFunc(dumps, func(d spool.Dump) bool { return d.Name == name }) {
			// The listing may be older than the removal; a file that is gone is no failure.
			_ = proc.claim.Acknowledge(e.dump, p.cfg.Keep)
			continue
		}
		delete(proc.entries, name)
	}
}

// drain removes the folder of a dead process that has nothing left. It is called with p.mu held.
func (p *Pipeline) drain(proc *process) {
	for _, e := range proc.entries {
		if !e.done {
			return
		}
	}
	removed, err := proc.claim.RemoveIfDrained()
	switch {
	case removed:
		delete(p.processes, proc.claim.Name())
		proc.entries = nil
	case err != nil:
		p.warn(err.Error())
	}
}

// why says why a folder is left in the spool. It is called with p.mu held.
func why(proc *process) string {
	waiting := 0
	for _, e := range proc.entries {
		if !e.done {
			waiting++
		}
	}
	switch {
	case waiting > 0:
		return fmt.Sprintf("%d not delivered", waiting)
	case proc.claim.State() != spool.Dead:
		return "still running"
	default:
		return "holds files that were kept"
	}
}

// forget is called with p.mu held.
func (p *Pipeline) forget(name string, proc *process, why string) {
	for _, e := range proc.entries {
		if !e.done {
			// The workers find no file and settle it.
			return
		}
	}
	delete(p.processes, name)
	if err := proc.claim.Release(); err != nil {
		p.warn(err.Error())
	}
	p.log.Debug("folder left", "folder", name, "because", why)
}

// complain logs an error that stands for one thing or several, each once.
func (p *Pipeline) complain(err error) {
	if err == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range many.Unwrap() {
			p.warn(one.Error())
		}
		return
	}
	p.warn(err.Error())
}

// warn is called with p.mu held.
func (p *Pipeline) warn(text string) { p.note(slog.LevelWarn, text) }

// note counts a warning and logs it unless it was logged before. It is called with p.mu held.
func (p *Pipeline) note(level slog.Level, text string) {
	const remembered = 1000
	if p.said[text] {
		return
	}
	p.stats.Warnings++
	if len(p.said) < remembered {
		p.said[text] = true
	}
	p.log.Log(context.Background(), level, text)
}
