// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	convert "github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/exporter/sink"
)

const (
	typeProtobuf = "application/x-protobuf"
	typeJSON     = "application/json"

	maxResponseBytes = 4 << 20 // the specification's bound for answers
)

type httpTransport struct {
	cfg         Config
	wire        wire
	url         string
	contentType string
	client      *http.Client
	now         func() time.Time
}

func newHTTP(cfg Config, w wire, tlsConfig *tls.Config) (*httpTransport, error) {
	u, err := httpURL(cfg.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: %w", cfg.Endpoint, err)
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = tlsConfig
	h := &httpTransport{
		cfg:         cfg,
		wire:        w,
		url:         u.String(),
		contentType: typeProtobuf,
		now:         time.Now,
		client: &http.Client{
			Transport: t,
			// A redirect would carry the headers, which hold secrets, to wherever it points.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	if cfg.Protocol == HTTPJSON {
		h.contentType = typeJSON
	}
	return h, nil
}

func (h *httpTransport) close() error {
	h.client.CloseIdleConnections()
	return nil
}

func (h *httpTransport) send(ctx context.Context, body []byte) (answer, error) {
	req, err := h.request(ctx, body)
	if err != nil {
		return answer{}, sink.Permanent(err)
	}
	resp, err := h.client.Do(req)
	if err != nil {
		if u := (*url.Error)(nil); errors.As(err, &u) {
			err = u.Err // the caller names the endpoint
		}
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxResponseBytes))
	if err != nil {
		return answer{}, fmt.Errorf("reading the answer (%s): %w", resp.Status, err)
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return parseAnswer(h.wire, resp.Header.Get("Content-Type"), text)
	}
	err = fmt.Errorf("%s: %s", resp.Status, statusMessage(resp.Header.Get("Content-Type"), text))
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return answer{}, retryAfter(parseRetryAfter(resp.Header.Get("Retry-After"), h.now()), err)
	}
	return answer{}, sink.Permanent(err)
}

func (h *httpTransport) request(ctx context.Context, body []byte) (*http.Request, error) {
	encoding := ""
	if h.cfg.Compression == "gzip" {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := w.Write(body); err != nil {
			return nil, fmt.Errorf("compressing the request: %w", err)
		}
		if err := w.Close(); err != nil {
			return nil, fmt.Errorf("compressing the request: %w", err)
		}
		body, encoding = b.Bytes(), "gzip"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", userAgent(h.cfg.Version))
	for _, k := range h.cfg.headerNames() {
		if strings.EqualFold(k, "Host") {
			req.Host = h.cfg.Headers[k]
		}
		req.Header.Set(k, h.cfg.Headers[k])
	}
	req.Header.Set("Content-Type", h.contentType)
	if h.wire.versioned {
		req.Header.Set(convert.VersionHeader, convert.Version)
	}
	if encoding != "" {
		req.Header.Set("Content-Encoding", encoding)
	}
	return req, nil
}

// parseAnswer reads the body of a 2xx. An empty one is a full success; a page of something that is no OTLP receiver, a
// login form perhaps, is not.
func parseAnswer(w wire, contentType string, body []byte) (answer, error) {
	if len(body) == 0 {
		return answer{}, nil
	}
	mediaType, _, _ := mime.ParseMediaType(contentType)
	var got answer
	var err error
	switch mediaType {
	case typeProtobuf, "application/protobuf":
		got, err = w.parse(body, false)
	case typeJSON:
		got, err = w.parse(body, true)
	default:
		err = fmt.Errorf("the answer is no OTLP: content type %q, %s", contentType, quote(body))
	}
	return got, sink.Permanent(err)
}

// statusMessage gives the message of a google.rpc.Status, which OTLP wants as the body of an error, or else the body.
func statusMessage(contentType string, body []byte) string {
	var st spb.Status
	var err error
	switch mediaType, _, _ := mime.ParseMediaType(contentType); mediaType {
	case typeProtobuf, "application/protobuf":
		err = proto.Unmarshal(body, &st)
	case typeJSON:
		err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(body, &st)
	default:
		return quote(body)
	}
	if err != nil || st.GetMessage() == "" {
		return quote(body)
	}
	return st.GetMessage()
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

// parseRetryAfter reads seconds or a date (RFC 9110, 10.2.3); 0 if there is neither.
func parseRetryAfter(s string, now time.Time) time.Duration {
	if s = strings.TrimSpace(s); s == "" {
		return 0
	}
	if n, err := strconv.ParseInt(s, 10, 32); err == nil {
		return time.Duration(max(n, 0)) * time.Second
	}
	if t, err := http.ParseTime(s); err == nil {
		return max(t.Sub(now), 0)
	}
	return 0
}
