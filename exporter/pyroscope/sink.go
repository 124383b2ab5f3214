// SPDX-License-Identifier: Apache-2.0

package pyroscope

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/heapwire/heapwire/exporter/sink"
)

// Sink pushes profiles to one Pyroscope server.
type Sink struct {
	cfg    Config
	url    string // to push to
	base   string // the server's own
	shown  string // without a password, for messages
	client *http.Client
	old    atomic.Bool // the server knows /ingest only
	deltas deltas

	mu     sync.Mutex
	counts map[string]int

	// progress: the server does not recognise a repeat of a part, and would add it.
	progress sink.Progress
}

var (
	_ sink.Sink      = (*Sink)(nil)
	_ sink.Addressed = (*Sink)(nil)
	_ sink.Counting  = (*Sink)(nil)
)

// What a sink counts beside profiles accepted and refused.
const (
	CountNoDelta   = "alloc_without_predecessor" // sent without alloc_*: what the process had allocated before is not known
	CountStale     = "stale"                     // given up: too old for the server
	CountRestamped = "restamped"                 // sent with the present time instead of its own
	CountAllocOld  = "alloc_to_old_server"       // sent without alloc_*: a server that knows /ingest only adds them up
	CountMaybe     = "answer_lost"               // may have been accepted; not sent again
)

// New makes a sink. It does not connect.
func New(cfg Config) (*Sink, error) {
	u, err := pushURL(cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("pyroscope: server address: %w", err)
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = DefaultMaxBytes
	}
	if cfg.MaxSamples <= 0 {
		cfg.MaxSamples = DefaultMaxSamples
	}
	if cfg.Version == "" {
		cfg.Version = "devel"
	}
	if u.User != nil && cfg.BasicAuthUser == "" && cfg.AuthToken == "" {
		cfg.BasicAuthUser = u.User.Username()
		cfg.BasicAuthPassword, _ = u.User.Password()
	}
	u.User = nil
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Stale == "" {
		cfg.Stale = DropStale
	}
	if cfg.StaleSetting == "" {
		cfg.StaleSetting = EnvStale
	}
	base := *u
	base.Path = strings.TrimSuffix(base.Path, "/"+pushPath)
	base.User = nil
	transport := cfg.Transport
	if transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		// A kept connection that the server closes meanwhile fails after the request was written, and then nobody knows
		// whether it was accepted. One push a minute has no use for it.
		t.DisableKeepAlives = true
		transport = t
	}
	return &Sink{cfg: cfg, counts: map[string]int{}, url: u.String(), base: base.String(), shown: u.Scheme + "://" + u.Host, client: &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Name is "pyroscope".
func (s *Sink) Name() string { return "pyroscope" }

// Destination is the server, with its tenant.
func (s *Sink) Destination() string { return s.url + " " + s.cfg.TenantID }

// Close drops idle connections.
func (s *Sink) Close(context.Context) error {
	s.client.CloseIdleConnections()
	return nil
}

// Export pushes one item, in several requests if it is above the server's limits. After an error that may be retried the
// next Export of the same item goes on where this one stopped.
//
// The alloc_* columns are sent as what was allocated since the dump before. A dump that was refused, or never offered, is
// made good by the next one's difference.
func (s *Sink) Export(ctx context.Context, it *sink.Item) error {
	return s.ExportTo(ctx, it, seriesOf(it))
}

// ExportTo is Export to a series of the caller's own. Of the item it reads Profile, Time, Duration and View; ProfileID tells
// profiles apart, and Process and Seq those whose alloc_* are to become differences. Labels of samples that the series
// does not have split it. ExportTo may be called from several goroutines, but with one item of a Process at a time.
func (s *Sink) ExportTo(ctx context.Context, it *sink.Item, to Series) error {
	it, err := s.stamped(it)
	if err != nil {
		return s.fail(it, sink.Permanent(err))
	}
	if !s.old.Load() {
		err = s.send(ctx, it, to, true, s.push)
		if !errors.Is(err, errNoPush) {
			return err
		}
		s.cfg.Logger.WarnContext(ctx, "the Pyroscope server does not know push.v1, trying /ingest", "server", s.shown)
	}
	by := func(ctx context.Context, to Series, p part) error { return s.ingest(ctx, it, to, p) }
	if err = s.send(ctx, it, to, false, by); err == nil {
		s.old.Store(true)
	}
	return err
}

// stamped gives an item the time that the server takes.
func (s *Sink) stamped(it *sink.Item) (*sink.Item, error) {
	now := s.cfg.Now()
	switch age := now.Sub(it.Time); {
	case it.Time.IsZero():
	case age > MaxAge && s.cfg.Stale == DropStale:
		s.count(CountStale)
		return it, fmt.Errorf("taken %v ago, the server takes nothing older than %v (%s=%s gives it the present time)",
			age.Round(time.Second), MaxAge, s.cfg.StaleSetting, RestampStale)
	case age > MaxAge, -age > MaxAhead:
		s.count(CountRestamped)
		moved := *it
		moved.Time = now
		return &moved, nil
	}
	return it, nil
}

// send shapes and splits an item, and sends the parts by one of the two ways. Without alloc, alloc_* is left out.
func (s *Sink) send(ctx context.Context, it *sink.Item, to Series, alloc bool, by func(ctx context.Context, to Series, p part) error) error {
	var diff difference
	var now totals
	if columns := allocColumns(it); len(columns) > 0 && alloc {
		var keys []uint64
		now, keys = sumsOf(it.Profile, columns)
		if before, known := s.deltas.since(it); known {
			diff = differenceOf(columns, now, before, keys)
		} else {
			s.count(CountNoDelta)
		}
	} else if len(columns) > 0 {
		s.count(CountAllocOld)
	}
	keep := func() {
		if now != nil {
			s.deltas.keep(it, now)
		}
	}
	p, err := shape(it, to.has, diff)
	if err != nil {
		return s.fail(it, sink.Permanent(err))
	}
	if p == nil {
		keep()
		return nil
	}
	parts, err := split(p, s.cfg.MaxBytes, s.cfg.MaxSamples)
	if err != nil {
		return s.fail(it, sink.Permanent(err))
	}
	for i := s.progress.Done(it.ProfileID); i < len(parts); i++ {
		err := by(ctx, to, parts[i])
		if err == nil {
			continue
		}
		var maybe *maybeError
		if errors.As(err, &maybe) {
			s.count(CountMaybe)
			err = sink.Permanent(err)
		}
		switch {
		case !sink.IsPermanent(err):
			s.progress.Keep(it.ProfileID, i)
		default:
			// Never twice: what the server has of it, or may have, is in no later difference.
			if i > 0 || maybe != nil {
				keep()
			}
			s.progress.Forget(it.ProfileID)
		}
		if len(parts) > 1 {
			err = fmt.Errorf("part %d of %d: %w", i+1, len(parts), err)
		}
		return s.fail(it, err)
	}
	s.progress.Forget(it.ProfileID)
	keep()
	return nil
}

// maybeError is a failure after which nobody knows whether the profile was accepted.
type maybeError struct{ err error }

func (e *maybeError) Error() string {
	return "no answer, and the profile may have been accepted: " + e.err.Error()
}
func (e *maybeError) Unwrap() error { return e.err }

func (s *Sink) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// Counts gives the figures named Count….
func (s *Sink) Counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.counts)
}

func (s *Sink) fail(it *sink.Item, err error) error {
	return fmt.Errorf("pushing %s/%s to %s: %w", it.Process, it.Base, s.shown, err)
}

// push sends one request. What may have been accepted is never worth a retry, because the server would add it up twice.
func (s *Sink) push(ctx context.Context, to Series, p part) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	var sent atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteRequest: func(i httptrace.WroteRequestInfo) { sent.Store(i.Err == nil) },
	})
	req, err := http.NewRequestWithContext(traced, http.MethodPost, s.url, bytes.NewReader(pushRequest(to.Labels, p.gzipped)))
	if err != nil {
		return sink.Permanent(err)
	}
	req.Header.Set("Content-Type", "application/proto")
	req.Header.Set("Connect-Protocol-Version", "1")
	for k, v := range s.headers() {
		req.Header.Set(k, v)
	}
	if tenant := s.tenant(to); tenant != "" {
		req.Header.Set("X-Scope-OrgID", tenant)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		if u := (*url.Error)(nil); errors.As(err, &u) {
			err = u.Err
		}
		if sent.Load() {
			return &maybeError{err}
		}
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return &maybeError{fmt.Errorf("reading the answer (%s): %w", resp.Status, err)}
	}
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode == http.StatusOK {
		if len(body) > 0 && mediaType != "application/proto" {
			return sink.Permanent(fmt.Errorf("the answer is not Pyroscope's: content type %q, %s", resp.Header.Get("Content-Type"), quote(body)))
		}
		return nil
	}
	err = fmt.Errorf("%s: %s, series %s", resp.Status, message(mediaType, body), describe(to.Labels))
	switch resp.StatusCode {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return sink.Permanent(fmt.Errorf("%w: %w", errNoPush, err))
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		// A profile above the server's burst would get 429 for ever; MaxBytes keeps ours below.
		return after(resp, err)
	}
	return sink.Permanent(err)
}

func (s *Sink) tenant(to Series) string { return cmp.Or(to.Tenant, s.cfg.TenantID) }

// headers are what goes with each request beside its content.
func (s *Sink) headers() map[string]string {
	h := map[string]string{"User-Agent": "heapwire/" + s.cfg.Version}
	switch {
	case s.cfg.AuthToken != "":
		h["Authorization"] = "Bearer " + s.cfg.AuthToken
	case s.cfg.BasicAuthUser != "" || s.cfg.BasicAuthPassword != "":
		h["Authorization"] = "Basic " + base64.StdEncoding.EncodeToString([]byte(s.cfg.BasicAuthUser+":"+s.cfg.BasicAuthPassword))
	}
	for k, v := range s.cfg.Headers {
		// The content is ours to name.
		if k = http.CanonicalHeaderKey(k); k != "Content-Type" && k != "Content-Encoding" && k != "Connect-Protocol-Version" {
			h[k] = v
		}
	}
	return h
}

func after(resp *http.Response, err error) error {
	n, e := strconv.ParseInt(strings.TrimSpace(resp.Header.Get("Retry-After")), 10, 32)
	if e != nil || n <= 0 {
		return err
	}
	return &sink.RetryAfterError{Delay: time.Duration(n) * time.Second, Err: err}
}

// message reads the error of the Connect protocol: {"code": "...", "message": "..."}.
func message(mediaType string, body []byte) string {
	var e struct{ Code, Message string }
	if mediaType != "application/json" || json.Unmarshal(body, &e) != nil || e.Code == "" {
		return quote(body)
	}
	return e.Code + ": " + e.Message
}

func quote(body []byte) string {
	if len(body) == 0 {
		return "no message"
	}
	const limit = 200
	if len(body) > limit {
		return strconv.Quote(string(body[:limit])) + "…"
	}
	return strconv.Quote(string(body))
}

// writers are used again: the tables of each take more than most profiles.
var writers = sync.Pool{New: func() any { return gzip.NewWriter(io.Discard) }}

func compress(raw []byte) ([]byte, error) {
	var b bytes.Buffer
	w := writers.Get().(*gzip.Writer)
	defer func() {
		w.Reset(io.Discard)
		writers.Put(w)
	}()
	w.Reset(&b)
	if _, err := w.Write(raw); err != nil {
		return nil, fmt.Errorf("compressing the profile: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compressing the profile: %w", err)
	}
	return b.Bytes(), nil
}
