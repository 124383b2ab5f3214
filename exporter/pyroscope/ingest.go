// SPDX-License-Identifier: Apache-2.0

package pyroscope

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/grafana/pyroscope-go/upstream"
	"github.com/grafana/pyroscope-go/upstream/remote"

	"github.com/heapwire/heapwire/exporter/sink"
)

// errNoPush is the answer of a server that does not know push.v1.
var errNoPush = errors.New("the server does not know " + pushPath)

// ingest sends a part by POST /ingest, which servers had before push.v1. Their clients are written for a queue that drops
// what it cannot send; here each request is made alone, and its outcome is taken from the HTTP client given to them.
func (s *Sink) ingest(ctx context.Context, it *sink.Item, to Series, p part) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	client := &ingestClient{ctx: ctx, client: s.client}
	headers := map[string]string{}
	for k, v := range s.headers() {
		headers[k] = v
	}
	r, err := remote.NewRemote(remote.Config{
		Address: s.base, TenantID: s.tenant(to), HTTPHeaders: headers, Threads: 1, Timeout: s.cfg.Timeout, Logger: silent{}, HTTPClient: client,
	})
	if err != nil {
		return sink.Permanent(fmt.Errorf("preparing a request to /ingest: %w", err))
	}
	r.Start()
	average := func(units string) *upstream.SampleType {
		// What is live at one moment does not add up over moments; servers before 1.0 heed this.
		return &upstream.SampleType{Units: units, Aggregation: "average", Sampled: false}
	}
	end := it.Time
	r.Upload(&upstream.UploadJob{
		Name: ingestName(to.Labels), StartTime: end.Add(-max(it.Duration, time.Second)), EndTime: end, SpyName: "heapwire", Units: "bytes",
		AggregationType: "average", Format: upstream.FormatPprof, Profile: p.gzipped,
		SampleTypeConfig: map[string]*upstream.SampleType{"inuse_space": average("bytes"), "inuse_objects": average("objects")},
	})
	r.Flush()
	r.Stop()
	switch {
	case client.err != nil && client.sent.Load():
		return &maybeError{client.err}
	case client.err != nil:
		return client.err
	case client.response == nil:
		return sink.Permanent(errors.New("preparing a request to /ingest"))
	case client.response.StatusCode == http.StatusOK:
		return nil
	}
	err = fmt.Errorf("/ingest: %s: %s, series %s", client.response.Status, quote(client.body), describe(to.Labels))
	switch client.response.StatusCode {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		return after(client.response, err)
	}
	return sink.Permanent(err)
}

// ingestName writes a series as "service{name=value,…}"; these servers have no quoting.
func ingestName(ls []Label) string {
	plain := strings.NewReplacer(",", "_", "{", "_", "}", "_", "=", "_", "\n", "_")
	var service string
	var pairs []string
	for _, l := range ls {
		switch {
		case l.Name == labelService:
			service = plain.Replace(l.Value)
		case !strings.HasPrefix(l.Name, reservedPrefix):
			pairs = append(pairs, l.Name+"="+plain.Replace(l.Value))
		}
	}
	return service + "{" + strings.Join(pairs, ",") + "}"
}

// ingestClient makes one request in place of pyroscope-go's own client, and remembers what came of it.
type ingestClient struct {
	ctx    context.Context
	client *http.Client

	sent     atomic.Bool
	response *http.Response
	body     []byte
	err      error
}

func (c *ingestClient) Do(req *http.Request) (*http.Response, error) {
	req = req.WithContext(httptrace.WithClientTrace(c.ctx, &httptrace.ClientTrace{
		WroteRequest: func(i httptrace.WroteRequestInfo) { c.sent.Store(i.Err == nil) },
	}))
	c.response, c.err = c.client.Do(req)
	if c.err != nil {
		return nil, c.err
	}
	c.body, c.err = io.ReadAll(io.LimitReader(c.response.Body, 1<<20))
	c.response.Body.Close()
	c.response.Body = io.NopCloser(bytes.NewReader(c.body))
	return c.response, nil
}

type silent struct{}

func (silent) Infof(string, ...any)  {}
func (silent) Debugf(string, ...any) {}
func (silent) Errorf(string, ...any) {}
