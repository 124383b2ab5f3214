// SPDX-License-Identifier: Apache-2.0

package pyroscope

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/heapwire/heapwire/exporter/sink"
)

// Sink pushes profiles to one Pyroscope server.
type Sink struct {
	cfg    Config
	url    string
	shown  string // url without a password, for messages
	client *http.Client

	// progress: the server does not recognise a repeat of a part, and would add it.
	progress sink.Progress
}

var (
	_ sink.Sink      = (*Sink)(nil)
	_ sink.Addressed = (*Sink)(nil)
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
	transport := cfg.Transport
	if transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		// A kept connection that the server closes meanwhile fails after the request was written, and then nobody knows
		// whether it was accepted. One push a minute has no use for it.
		t.DisableKeepAlives = true
		transport = t
	}
	return &Sink{cfg: cfg, url: u.String(), shown: u.Scheme + "://" + u.Host, client: &http.Client{
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
func (s *Sink) Export(ctx context.Context, it *sink.Item) error {
	ls := labels(it)
	has := func(name string) bool {
		for _, l := range ls {
			if l.name == name {
				return true
			}
		}
		return false
	}
	p, err := shape(it, has)
	if err != nil {
		return s.fail(it, sink.Permanent(err))
	}
	if p == nil {
		return nil
	}
	parts, err := split(p, s.cfg.MaxBytes, s.cfg.MaxSamples)
	if err != nil {
		return s.fail(it, sink.Permanent(err))
	}
	for i := s.progress.Done(it.ProfileID); i < len(parts); i++ {
		if err := s.push(ctx, ls, parts[i]); err != nil {
			if sink.IsPermanent(err) {
				s.progress.Forget(it.ProfileID)
			} else {
				s.progress.Keep(it.ProfileID, i)
			}
			if len(parts) > 1 {
				err = fmt.Errorf("part %d of %d: %w", i+1, len(parts), err)
			}
			return s.fail(it, err)
		}
	}
	s.progress.Forget(it.ProfileID)
	return nil
}

func (s *Sink) fail(it *sink.Item, err error) error {
	return fmt.Errorf("pushing %s/%s to %s: %w", it.Process, it.Base, s.shown, err)
}

// push sends one request. What may have been accepted is never worth a retry, because the server would add it up twice.
func (s *Sink) push(ctx context.Context, ls []label, p part) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	var sent atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteRequest: func(i httptrace.WroteRequestInfo) { sent.Store(i.Err == nil) },
	})
	req, err := http.NewRequestWithContext(traced, http.MethodPost, s.url, bytes.NewReader(pushRequest(ls, p.gzipped)))
	if err != nil {
		return sink.Permanent(err)
	}
	req.Header.Set("Content-Type", "application/proto")
	req.Header.Set("Connect-Protocol-Version", "1")
	req.Header.Set("User-Agent", "heapwire/"+s.cfg.Version)
	switch {
	case s.cfg.AuthToken != "":
		req.Header.Set("Authorization", "Bearer "+s.cfg.AuthToken)
	case s.cfg.BasicAuthUser != "" || s.cfg.BasicAuthPassword != "":
		req.SetBasicAuth(s.cfg.BasicAuthUser, s.cfg.BasicAuthPassword)
	}
	if s.cfg.TenantID != "" {
		req.Header.Set("X-Scope-OrgID", s.cfg.TenantID)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		if u := (*url.Error)(nil); errors.As(err, &u) {
			err = u.Err
		}
		if sent.Load() {
			return sink.Permanent(fmt.Errorf("no answer, and the profile may have been accepted: %w", err))
		}
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return sink.Permanent(fmt.Errorf("reading the answer (%s): %w", resp.Status, err))
	}
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode == http.StatusOK {
		if len(body) > 0 && mediaType != "application/proto" {
			return sink.Permanent(fmt.Errorf("the answer is not Pyroscope's: content type %q, %s", resp.Header.Get("Content-Type"), quote(body)))
		}
		return nil
	}
	err = fmt.Errorf("%s: %s, series %s", resp.Status, message(mediaType, body), describe(ls))
	switch resp.StatusCode {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		// A profile above the server's burst would get 429 for ever; MaxBytes keeps ours below.
		return after(resp, err)
	}
	return sink.Permanent(err)
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

func compress(raw []byte) ([]byte, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(raw); err != nil {
		return nil, fmt.Errorf("compressing the profile: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compressing the profile: %w", err)
	}
	return b.Bytes(), nil
}
