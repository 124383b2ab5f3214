// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/heapwire/heapwire/convert"
	"github.com/heapwire/heapwire/convert/compare"
	"github.com/heapwire/heapwire/exporter/sink"
	"github.com/heapwire/heapwire/exporter/spool"
)

// ErrUndelivered is returned by Shutdown when dumps are left in the spool.
var ErrUndelivered = errors.New("not everything was delivered")

// Retry says how long a sink is tried. The zero value has the defaults named at each field.
type Retry struct {
	Initial    time.Duration // first wait, 500 ms; each next is 1.5 times as long, all with jitter of one half
	Max        time.Duration // longest wait, 30 s
	MaxElapsed time.Duration // a dump that no attempt has delivered so long after it was found is given up, 24 h
	Attempt    time.Duration // longest attempt, 60 s
	Patience   time.Duration // after so long the next dump is tried before this one again, 2 min
}

// Config says what a pipeline reads and where it sends it.
type Config struct {
	Spool   *spool.Spool     // may be nil where there are Folders
	Sinks   []sink.Sink      // at least one
	Events  []sink.EventSink // beside those among Sinks that take events
	Convert func(r io.Reader, name string) (*convert.Heap, error)
	// Folders hold snapshots that others made; their files are never removed.
	Folders []*spool.Folder
	// Poll is how often Folders are looked at where there is no Spool, 5 s.
	Poll time.Duration
	Keep bool // keep delivered dumps in spool.DeliveredFolder, and dumps that cannot be read where they are
	// Quarantine sets a dump that a sink refused for good aside, with the reason beside it, instead of removing it.
	Quarantine bool
	Retry      Retry
	// Limits bound what waits in the folders that this pipeline has claimed: 1 GiB, 20 000 files, 24 h where a field is 0;
	// a negative one is no bound.
	Limits spool.Limits
	// NoSummary leaves out what Processes, Growth and Verdicts tell, and with it the memory for it, which grows with the
	// processes. What sinks for events need is remembered of the processes that are there.
	NoSummary bool
	Logger    *slog.Logger         // nil: silent
	Meters    metric.MeterProvider // for the pipeline's own metrics, until it is shut down itself; nil: none
	// Shared are metrics of several pipelines together, instead of Meters.
	Shared *Meters

	now func() time.Time
}

// Pipeline carries dumps from a spool to sinks. Make one with [New], begin with Start, end with Shutdown.
type Pipeline struct {
	cfg     Config
	log     *slog.Logger
	workers []*worker
	meters  *Meters

	run    context.Context // ends with the time that Shutdown is given
	stop   context.CancelFunc
	hurry  chan struct{} // closed when Shutdown begins: no long waits any more
	watch  context.CancelFunc
	looked chan struct{} // closed when the watching goroutine has ended
	close  sync.Once
	result error

	scanning  sync.Mutex
	converted *cache
	slots     chan struct{}  // one for each snapshot that is being converted
	lanes     sync.WaitGroup // goroutines that convert snapshots
	idle      chan struct{}  // closed when the last of them has ended

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced when an entry is done
	processes map[string]*process
	seen      []*process // every process ever claimed, in order
	endings   map[int]*ending
	stats     Stats
	said      map[string]bool
	names     map[uint64]compare.Named
}

// process is a claimed process folder.
type process struct {
	claim    source
	folder   *spool.Folder // the claim, if it is no process's
	lane     []*entry      // snapshots to be converted, in order
	laneBusy bool
	identity sink.Identity
	whole    bool // identity was read without an error
	entries  map[string]*entry
	summary  Process
	series   compare.Series
	verdicts map[uint64]toldVerdict       // by verdictKey
	devices  map[string][]compare.Verdict // by the device, of the last snapshot that has it
	told     int                          // events of verdicts so far
	memo     memo
	mourned  bool // its end was told, or needs no telling
	kept     []spool.Dump
	state    spool.State
	judgeAt  time.Time
}

// source is a folder of dumps that this reader has claimed: that of a process in the spool, or one of snapshots that others
// made.
type source interface {
	Name() string
	Path() string
	Identity() (sink.ProcessJSON, error)
	State() spool.State
	Cgroup() string
	Dumps() ([]spool.Dump, error)
	Open(spool.Dump) (io.ReadCloser, error)
	ReadSidecar(spool.Dump) ([]byte, error)
	Acknowledge(d spool.Dump, keep bool) error
	Reject(d spool.Dump, reason string) error
	Drop(spool.Dump) error
	Kept() ([]spool.Dump, error)
	Settled(dump, sink string) bool
	Settle(dump, sink string) error
	Note() string
	SetNote(text string) error
	RemoveIfDrained() (bool, error)
	Refresh() error
	Release() error
}

// entry is a dump, or what is told of a process's end, on its way.
type entry struct {
	process *process
	dump    spool.Dump
	event   *sink.Event // nil for a dump
	found   time.Time
	taken   bool             // converted, or found unreadable
	open    map[*worker]bool // those that have neither accepted it nor given it up
	busy    int              // attempts under way
	done    bool             // delivered or given up by all, dropped, or unreadable; only its file may be left
	left    bool             // unreadable, and its file stays
	refused string           // why sinks refused it for good

	queued  bool // in its process's lane
	convert sync.Mutex
	parts   *Parts
}

func (e *entry) path() string {
	if e.dump.Path != "" {
		return e.dump.Path
	}
	return filepath.Join(e.process.claim.Path(), e.dump.Name)
}

// snapshot says whether the dump is of a device: it may be large.
func (e *entry) snapshot() bool { return e.dump.Kind != "" || e.process.folder != nil }

// New checks a configuration. Nothing is read before Start.
func New(cfg Config) (*Pipeline, error) {
	switch {
	case cfg.Spool == nil && len(cfg.Folders) == 0:
		return nil, errors.New("making a pipeline: no spool and no folder")
	case len(cfg.Sinks) == 0:
		return nil, errors.New("making a pipeline: no sink")
	case cfg.Convert == nil:
		return nil, errors.New("making a pipeline: no converter")
	}
	cfg.Retry = cfg.Retry.withDefaults()
	cfg.Limits = withDefaults(cfg.Limits)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.now == nil {
		cfg.now = time.Now
	}
	p := &Pipeline{
		cfg: cfg, log: cfg.Logger, hurry: make(chan struct{}), looked: make(chan struct{}), idle: make(chan struct{}),
		changed: make(chan struct{}), processes: map[string]*process{}, endings: map[int]*ending{}, said: map[string]bool{},
		names: map[uint64]compare.Named{}, converted: &cache{size: len(cfg.Sinks) + 1},
		slots: make(chan struct{}, min(runtime.GOMAXPROCS(0), maxConversions)),
	}
	p.stats.Dropped = map[string]int{}
	p.run, p.stop = context.WithCancel(context.Background())
	keys := map[string]int{}
	add := func(w *worker) {
		w.key = keyOf(w.any())
		if keys[w.key]++; keys[w.key] > 1 {
			w.key += fmt.Sprintf("#%d", keys[w.key])
		}
		p.workers = append(p.workers, w)
	}
	for _, s := range cfg.Sinks {
		events, _ := s.(sink.EventSink)
		add(newWorker(p, s, events))
	}
	for _, s := range cfg.Events {
		add(newWorker(p, nil, s))
	}
	if p.meters = cfg.Shared; p.meters != nil {
		return p, nil
	}
	var err error
	p.meters, err = NewMeters(cfg.Meters, p.Stats)
	return p, err
}

// where is what messages call the place that is read.
func (p *Pipeline) where() string {
	if p.cfg.Spool != nil {
		return p.cfg.Spool.Path()
	}
	return p.cfg.Folders[0].Path()
}

// changes sends when there may be something new.
func (p *Pipeline) changes(ctx context.Context) <-chan struct{} {
	if p.cfg.Spool != nil {
		return p.cfg.Spool.Changes(ctx)
	}
	every := p.cfg.Poll
	if every <= 0 {
		every = 5 * time.Second
	}
	out := make(chan struct{}, 1)
	out <- struct{}{}
	go func() {
		defer close(out)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			select {
			case out <- struct{}{}:
			default:
			}
		}
	}()
	return out
}

// maxConversions is how many snapshots are converted at a time: each takes memory in proportion to its size.
const maxConversions = 4

func (r Retry) withDefaults() Retry {
	set := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	set(&r.Initial, 500*time.Millisecond)
	set(&r.Max, 30*time.Second)
	set(&r.MaxElapsed, 24*time.Hour)
	set(&r.Attempt, time.Minute)
	set(&r.Patience, 2*time.Minute)
	return r
}

func withDefaults(l spool.Limits) spool.Limits {
	if l.Bytes == 0 {
		l.Bytes = 1 << 30
	}
	if l.Files == 0 {
		l.Files = 20000
	}
	if l.Age == 0 {
		l.Age = 24 * time.Hour
	}
	return l
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
		for range p.changes(watch) {
			p.look(watch, false)
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
			for _, f := range p.cfg.Folders {
				f.NoWriters()
			}
			p.look(ctx, true)
		}
		if left := p.await(ctx); left > 0 {
			errs = append(errs, fmt.Errorf("%w: %d left in %s", ErrUndelivered, left, p.where()))
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
		if err := w.any().Close(closing); err != nil {
			errs = append(errs, fmt.Errorf("closing sink %s: %w", w.name, err))
		}
		cancel()
	}
	if p.watch != nil {
		go func() {
			<-p.looked
			p.lanes.Wait()
			close(p.idle)
		}()
		ends(ctx, p.idle)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	running := p.running()
	for _, proc := range p.processes {
		if len(running) == 0 {
			p.drain(proc)
		}
	}
	var claims []source
	for _, proc := range p.processes {
		proc.summary.Left = why(proc)
		claims = append(claims, proc.claim)
	}
	release := func() error {
		var errs []error
		for _, c := range claims {
			errs = append(errs, c.Release())
		}
		return errors.Join(errs...)
	}
	if len(running) == 0 {
		return errors.Join(append(errs, release())...)
	}
	// Whoever was left behind may still use the folders; a descriptor closed under it could be another file's by then.
	go func() {
		for _, ended := range running {
			<-ended
		}
		_ = release()
	}()
	return errors.Join(errs...)
}

// running gives the ends of the goroutines that have not ended.
func (p *Pipeline) running() (ends []<-chan struct{}) {
	if p.watch == nil {
		return nil
	}
	all := []<-chan struct{}{p.looked, p.idle}
	for _, w := range p.workers {
		all = append(all, w.ended)
	}
	for _, ended := range all {
		select {
		case <-ended:
		default:
			ends = append(ends, ended)
		}
	}
	return ends
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

// look takes in what is new in the spool. Whether processes live is judged every two seconds, or now.
func (p *Pipeline) look(ctx context.Context, now bool) {
	p.scanning.Lock()
	defer p.scanning.Unlock()
	var (
		folders []string
		err     error
	)
	if p.cfg.Spool != nil {
		folders, err = p.cfg.Spool.Processes()
		p.complain(err)
	}
	// A spool that cannot be listed for now has lost nothing yet.
	if folders == nil && err != nil {
		return
	}
	p.mu.Lock()
	for name, proc := range p.processes {
		if proc.folder == nil && !slices.Contains(folders, name) {
			p.forget(name, proc, "its folder has gone")
		}
	}
	p.mu.Unlock()
	type listed struct {
		proc   *process
		dumps  []spool.Dump
		found  []*entry
		judged bool
	}
	claims := make([]func() (source, *spool.Folder, error), 0, len(folders)+len(p.cfg.Folders))
	for _, name := range folders {
		claims = append(claims, func() (source, *spool.Folder, error) {
			claim, err := p.cfg.Spool.Claim(name)
			return claim, nil, err
		})
	}
	for _, f := range p.cfg.Folders {
		folders = append(folders, f.Name())
		claims = append(claims, func() (source, *spool.Folder, error) { return f, f, f.Claim() })
	}
	var all []*listed
	for i, name := range folders {
		proc := p.claim(name, claims[i])
		if proc == nil {
			continue
		}
		if err := proc.claim.Refresh(); err != nil {
			p.lose(name, proc, err)
			if proc = p.claim(name, claims[i]); proc == nil {
				continue
			}
		}
		l := &listed{proc: proc}
		// Dead before the listing means that nothing comes after it.
		if t := time.Now(); now || t.After(proc.judgeAt) {
			const between = 2 * time.Second
			proc.judgeAt, l.judged = t.Add(between), true
			state := proc.claim.State()
			kept, err := proc.claim.Kept()
			p.complain(err)
			p.mu.Lock()
			proc.state, proc.kept = state, kept
			p.mu.Unlock()
		}
		l.dumps, err = proc.claim.Dumps()
		p.complain(err)
		l.found = p.enter(proc, l.dumps)
		all = append(all, l)
		// Snapshots go a way of their own: a large one holds nobody up.
		var snapshots []*entry
		l.found = slices.DeleteFunc(l.found, func(e *entry) bool {
			if e.snapshot() {
				snapshots = append(snapshots, e)
			}
			return e.snapshot()
		})
		if ctx.Err() == nil {
			p.queue(proc, snapshots)
		}
	}
	p.enforce()
	tasks := make(chan *listed)
	var takers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(all)) {
		takers.Go(func() {
			for l := range tasks {
				for _, e := range l.found {
					p.take(e)
				}
			}
		})
	}
	for _, l := range all {
		// Without time to convert them, they are counted at least.
		if len(l.found) > 0 && ctx.Err() == nil {
			tasks <- l
		}
	}
	close(tasks)
	takers.Wait()
	if now {
		p.awaitTaken(ctx)
	}
	for _, l := range all {
		if l.judged && ctx.Err() == nil {
			p.mourn(l.proc)
		}
		p.mu.Lock()
		p.retire(l.proc, l.dumps)
		if l.judged {
			p.drain(l.proc)
		}
		p.mu.Unlock()
	}
}

// queue has snapshots converted, those of a process one after the other.
func (p *Pipeline) queue(proc *process, snapshots []*entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range snapshots {
		if !e.queued {
			e.queued = true
			proc.lane = append(proc.lane, e)
		}
	}
	if len(proc.lane) == 0 || proc.laneBusy {
		return
	}
	proc.laneBusy = true
	p.lanes.Go(func() {
		for {
			p.mu.Lock()
			if len(proc.lane) == 0 || p.run.Err() != nil {
				proc.laneBusy = false
				p.signal()
				p.mu.Unlock()
				return
			}
			e := proc.lane[0]
			proc.lane = proc.lane[1:]
			p.mu.Unlock()
			p.take(e)
		}
	})
}

// awaitTaken waits until what was found is converted.
func (p *Pipeline) awaitTaken(ctx context.Context) {
	for {
		p.mu.Lock()
		busy, changed := false, p.changed
		for _, proc := range p.processes {
			busy = busy || proc.laneBusy
		}
		p.mu.Unlock()
		if !busy {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// claim gives a folder that this reader has, or takes it by take.
func (p *Pipeline) claim(name string, take func() (source, *spool.Folder, error)) *process {
	p.mu.Lock()
	proc := p.processes[name]
	p.mu.Unlock()
	if proc == nil {
		claim, folder, err := take()
		if errors.Is(err, spool.ErrClaimed) {
			p.log.Debug("left to another reader", "folder", name)
			return nil
		}
		if err != nil {
			p.complain(err)
			return nil
		}
		proc = &process{claim: claim, folder: folder, entries: map[string]*entry{}, summary: Process{Folder: name}, memo: readMemo(claim.Note())}
		if folder != nil {
			proc.summary.Snapshots = folder.Path()
		} else if proc.memo.Cgroup == "" {
			proc.memo.Cgroup = claim.Cgroup()
			proc.memo.OOMKills, _ = p.cfg.Spool.OOMKills(proc.memo.Cgroup)
		}
		p.mu.Lock()
		p.processes[name] = proc
		if !p.cfg.NoSummary {
			p.seen = append(p.seen, proc)
		}
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
			if !e.taken && !e.done {
				found = append(found, e)
			}
			continue
		}
		e := &entry{process: proc, dump: d, found: time.Now(), open: map[*worker]bool{}}
		for _, w := range p.workers {
			// What is told of a snapshot is known when it has been read.
			if (w.sink != nil || e.snapshot()) && !proc.claim.Settled(d.Name, w.key) {
				e.open[w] = true
			}
		}
		proc.entries[d.Name] = e
		if len(e.open) == 0 {
			// An earlier reader ended between the last acknowledgement and the file's removal.
			e.taken, e.done = true, true
			continue
		}
		p.stats.Dumps++
		p.stats.Pending++
		proc.summary.Dumps++
		found = append(found, e)
	}
	if (len(found) > 0 || len(proc.entries) == 0) && !proc.whole {
		read, err := proc.claim.Identity()
		if err != nil && len(found) > 0 {
			p.warn(err.Error())
		}
		proc.identity, proc.whole = read.Identity(), err == nil
		proc.summary.Identity = proc.identity
	}
	return found
}

// enforce drops what is above the limits.
func (p *Pipeline) enforce() {
	p.mu.Lock()
	var (
		files   []spool.Waiting
		entries []*entry
		from    []*process
	)
	for name, proc := range p.processes {
		if proc.folder != nil {
			continue // these files are not ours to drop
		}
		var last uint64
		for _, e := range proc.entries {
			if !e.snapshot() {
				last = max(last, e.dump.Seq)
			}
		}
		for _, e := range proc.entries {
			if !e.done && e.event == nil {
				files = append(files, spool.Waiting{Dump: e.dump, Process: name, Last: e.dump.Seq == last && !e.snapshot()})
				entries, from = append(entries, e), append(from, proc)
			}
		}
		for _, d := range proc.kept {
			files = append(files, spool.Waiting{Dump: d, Process: name, Kept: true})
			entries, from = append(entries, nil), append(from, proc)
		}
	}
	excess := spool.Excess(files, p.cfg.Limits, p.cfg.now())
	excess = slices.DeleteFunc(excess, func(d spool.Dropped) bool {
		e, proc := entries[d.Index], from[d.Index]
		switch {
		case e == nil:
			proc.kept = slices.DeleteFunc(proc.kept, func(k spool.Dump) bool { return k.Name == files[d.Index].Name })
		case e.busy > 0:
			return true // it may be accepted this moment; the next look decides
		default:
			e.open = nil
			p.stats.Dropped[string(d.Why)]++
			p.warn(fmt.Sprintf("the spool %s is above its limit of %s: dropping dumps", p.where(), d.Why))
			p.finish(e)
		}
		return false
	})
	p.mu.Unlock()
	for _, d := range excess {
		p.complain(from[d.Index].claim.Drop(files[d.Index].Dump))
		if e := entries[d.Index]; e != nil {
			p.converted.drop(e)
		}
	}
}

// take converts a new dump for the first time and offers it to the sinks.
func (p *Pipeline) take(e *entry) {
	p.mu.Lock()
	dropped := e.done
	p.mu.Unlock()
	if dropped {
		return
	}
	began := time.Now()
	parts, err := p.partsOf(e)
	var (
		now  compare.Snapshot
		item *sink.Item
	)
	if err == nil && !e.snapshot() {
		item = parts.Items[0]
		now = snapshotOf(item)
	}
	took := time.Since(began)
	p.meters.converted(took, err)
	p.mu.Lock()
	if e.done {
		p.mu.Unlock()
		p.converted.drop(e)
		return
	}
	if err != nil && p.run.Err() != nil {
		// It was told to stop; the dump stays for the next reader.
		p.signal()
		p.mu.Unlock()
		return
	}
	e.taken = true
	p.stats.ConvertTime += took
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
		exited := e.dump.Reason == "exit" && !e.snapshot()
		p.mu.Unlock()
		p.setAside(e, err)
		if exited {
			p.memorise(e.process, nil)
		}
		return
	}
	p.stats.Converted++
	s := &e.process.summary
	if item == nil {
		if !p.cfg.NoSummary && e.process.folder == nil {
			e.process.judgeDevices(parts.Verdicts)
		}
		s.OOMs = append(s.OOMs, parts.OOMs[:min(len(parts.OOMs), max(maxOOMs-len(s.OOMs), 0))]...)
		p.signal()
		p.mu.Unlock()
		for _, line := range parts.OOMs {
			p.log.Warn(line, "process", e.process.claim.Name())
		}
		// Which snapshot tells of an error is noted before any sink has it.
		if len(parts.OOMs) > 0 {
			p.keep(e.process)
		}
		p.offer(e)
		return
	}
	s.Last, s.Reason = item.Time, item.Reason
	for _, giant := range item.Giants {
		p.log.Warn(giant, "process", e.process.claim.Name())
		if len(s.Giants) < maxGiants {
			s.Giants = append(s.Giants, giant)
		}
	}
	s.Live = now.Live.Bytes
	var verdicts []*entry
	if !p.cfg.NoSummary || p.takesEvents() {
		p.remember(e.process, now)
		verdicts = p.tell(e.process, item)
	}
	p.mu.Unlock()
	p.memorise(e.process, lastDump(item, now))
	p.offer(e)
	for _, v := range verdicts {
		p.offer(v)
	}
}

func (p *Pipeline) offer(e *entry) {
	p.mu.Lock()
	var to []*worker
	for _, w := range p.workers {
		if e.open[w] {
			to = append(to, w)
		}
	}
	p.mu.Unlock()
	for _, w := range to {
		w.offer(e)
	}
}

func (p *Pipeline) setAside(e *entry, why error) {
	if !p.cfg.Keep || e.process.folder != nil {
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

// settle notes that one sink is done with an entry.
func (p *Pipeline) settle(e *entry, w *worker) {
	p.mu.Lock()
	if !e.open[w] {
		p.mu.Unlock()
		return
	}
	alone := len(e.open) == 1
	p.mu.Unlock()
	claim := e.process.claim
	// Noted before it counts: when all have settled, the folder may be let go of.
	if e.event != nil {
		if e.event.Verdict == nil { // a verdict is for now: who reads on later comes to one of its own
			p.complain(claim.Settle(deathNote, w.key))
		}
	} else if !alone {
		// Removing the file says the same of the last one.
		p.complain(claim.Settle(e.dump.Name, w.key))
	}
	p.mu.Lock()
	delete(e.open, w)
	last := len(e.open) == 0 && !e.done
	p.mu.Unlock()
	if !last {
		return
	}
	var err error
	p.mu.Lock()
	refused := e.refused
	p.mu.Unlock()
	switch {
	case e.event != nil:
	case refused != "" && p.cfg.Quarantine:
		p.converted.drop(e)
		p.setAside(e, errors.New(refused))
	default:
		p.converted.drop(e)
		if err = claim.Acknowledge(e.dump, p.cfg.Keep); err != nil {
			p.complain(errors.Join(err, claim.Settle(e.dump.Name, w.key)))
		}
	}
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
	listed := make(map[string]bool, len(dumps))
	for _, d := range dumps {
		listed[d.Name] = true
	}
	for name, e := range proc.entries {
		switch {
		case !e.done || e.left:
		case e.event != nil || !listed[name]:
			delete(proc.entries, name)
		default:
			// The listing may be older than the removal; a file that is gone is no failure.
			_ = proc.claim.Acknowledge(e.dump, p.cfg.Keep)
		}
	}
}

// drain removes the folder of a dead process that has nothing left. It is called with p.mu held.
func (p *Pipeline) drain(proc *process) {
	if proc.state == spool.Alive || proc.state == spool.Dead && !proc.mourned {
		return
	}
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
		p.fade(proc)
	case err != nil:
		p.warn(err.Error())
	}
}

// fade bounds what is remembered of processes that have gone. It is called with p.mu held.
func (p *Pipeline) fade(proc *process) {
	const remembered = 256
	if len(p.seen) > remembered {
		proc.series = compare.Series{}
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
	case proc.folder != nil:
		return ""
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
	p.fade(proc)
	if err := proc.claim.Release(); err != nil {
		p.warn(err.Error())
	}
	p.log.Debug("folder left", "folder", name, "because", why)
}

// lost is why a dump was dropped that was no longer there, or no longer ours, beside spool.Why.
const lost = "lost"

// lose lets go of a folder that another reader has taken over, or that was removed.
func (p *Pipeline) lose(name string, proc *process, why error) {
	p.complain(why)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range proc.entries {
		if !e.done {
			e.open = nil
			if e.event == nil {
				p.stats.Dropped[lost]++
			}
			p.finish(e)
		}
	}
	p.forget(name, proc, why.Error())
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
