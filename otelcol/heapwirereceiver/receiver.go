// SPDX-License-Identifier: Apache-2.0

package heapwirereceiver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receiverhelper"
	"go.opentelemetry.io/collector/receiver/receiverhelper/xreceiverhelper"
	"go.uber.org/zap/exp/zapslog"

	"github.com/heapwire/heapwire/convert/symbol"
	"github.com/heapwire/heapwire/exporter"
)

// drainTime is how long a pipeline may still deliver when it ends. What it does not deliver stays in the spool.
const drainTime = 5 * time.Second

// heapwireReceiver reads all folders of one configuration, for all signals.
type heapwireReceiver struct {
	cfg *Config
	set receiver.Settings
	log *slog.Logger

	// Nil for a signal that has no pipeline.
	profiles xconsumer.Profiles
	logs     consumer.Logs
	metrics  consumer.Metrics

	observe struct {
		profiles *xreceiverhelper.ObsReport
		others   *receiverhelper.ObsReport
	}
	symbols symbol.Resolver
	store   storage.Client
	meters  *exporter.Meters

	begin sync.Once
	end   sync.Once
	err   error // of begin
	stop  context.CancelFunc
	ended chan struct{} // closed when nothing is looked for any more

	mu      sync.Mutex
	hosts   []component.Host
	reading map[string]*reading // by folder
	leaving map[*reading]bool
	closing sync.WaitGroup
	retired exporter.Stats // of the folders that have gone
	trouble string         // told as the status last
}

func newReceiver(cfg *Config, set receiver.Settings) (*heapwireReceiver, error) {
	r := &heapwireReceiver{
		cfg: cfg, set: set, log: slog.New(zapslog.NewHandler(set.Logger.Core())), reading: map[string]*reading{}, leaving: map[*reading]bool{}, ended: make(chan struct{}),
	}
	settings := receiverhelper.ObsReportSettings{ReceiverID: set.ID, Transport: "file", ReceiverCreateSettings: set, LongLivedCtx: true}
	var err, others error
	r.observe.profiles, err = xreceiverhelper.NewObsReport(settings)
	r.observe.others, others = receiverhelper.NewObsReport(settings)
	return r, errors.Join(err, others)
}

// Start begins to look for folders, once for all signals. It does not wait for any.
func (r *heapwireReceiver) Start(ctx context.Context, host component.Host) error {
	r.mu.Lock()
	r.hosts = append(r.hosts, host)
	r.mu.Unlock()
	r.begin.Do(func() { r.err = r.start(ctx, host) })
	return r.err
}

func (r *heapwireReceiver) start(ctx context.Context, host component.Host) error {
	if id := r.cfg.StorageID; id != nil {
		extension, ok := host.GetExtensions()[*id]
		if !ok {
			return fmt.Errorf("storage: no extension %q", id)
		}
		store, ok := extension.(storage.Extension)
		if !ok {
			return fmt.Errorf("storage: extension %q is no storage", id)
		}
		var err error
		if r.store, err = store.GetClient(ctx, component.KindReceiver, r.set.ID, ""); err != nil {
			return fmt.Errorf("storage: opening %q: %w", id, err)
		}
	}
	var err error
	if r.meters, err = exporter.NewMeters(r.set.MeterProvider, r.stats); err != nil {
		return err
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.stop = stop
	go r.watch(run)
	return nil
}

// Shutdown ends the reading, once for all signals. It may be called without Start.
func (r *heapwireReceiver) Shutdown(ctx context.Context) error {
	var err error
	r.end.Do(func() { err = r.shutdown(ctx) })
	return err
}

func (r *heapwireReceiver) shutdown(ctx context.Context) error {
	forget(r)
	r.begin.Do(func() {}) // a Start that comes later does nothing
	if r.stop == nil {
		return nil
	}
	r.stop()
	<-r.ended
	r.mu.Lock()
	for path := range r.reading {
		r.leave(ctx, path)
	}
	r.mu.Unlock()
	r.closing.Wait()
	err := r.meters.Close()
	if r.store != nil {
		err = errors.Join(err, r.store.Close(ctx))
	}
	return err
}

// stats add up all folders, those that have gone too.
func (r *heapwireReceiver) stats() exporter.Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all exporter.Stats
	all.Add(r.retired)
	for _, one := range r.reading {
		all.Add(one.pipeline.Stats())
	}
	for one := range r.leaving {
		all.Add(one.pipeline.Stats())
	}
	return all
}

// tell reports to the Collector when the receiver's state has changed: whether a folder cannot be read, or a consumer takes
// nothing for now.
func (r *heapwireReceiver) tell(problems []error) {
	for _, s := range r.stats().Sinks {
		if s.Down && s.LastError != nil {
			problems = append(problems, fmt.Errorf("%s: %w", s.Name, s.LastError))
		}
	}
	err := errors.Join(problems...)
	text := ""
	if err != nil {
		text = err.Error()
	}
	r.mu.Lock()
	changed, hosts := text != r.trouble, r.hosts
	r.trouble = text
	r.mu.Unlock()
	if !changed {
		return
	}
	event := componentstatus.NewEvent(componentstatus.StatusOK)
	if err != nil {
		event = componentstatus.NewRecoverableErrorEvent(err)
		r.log.Warn("not everything can be read or handed on", "error", err)
	}
	for _, host := range hosts {
		componentstatus.ReportStatus(host, event)
	}
}
