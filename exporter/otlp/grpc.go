// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	convert "github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/exporter/sink"
)

type grpcTransport struct {
	wire     wire
	conn     *grpc.ClientConn
	metadata metadata.MD
	options  []grpc.CallOption
}

func newGRPC(cfg Config, w wire, tlsConfig *tls.Config) (*grpcTransport, error) {
	target, plain, err := grpcTarget(cfg.Endpoint, cfg.Insecure)
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: %w", cfg.Endpoint, err)
	}
	creds := credentials.NewTLS(tlsConfig)
	if plain {
		creds = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(creds),
		grpc.WithUserAgent(userAgent(cfg.Version)),
		grpc.WithDisableServiceConfig(), // retrying is the pipeline's
	)
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: %w", cfg.Endpoint, err)
	}
	t := &grpcTransport{wire: w, conn: conn, metadata: metadata.MD{}, options: []grpc.CallOption{grpc.ForceCodec(rawCodec{})}}
	for _, k := range cfg.headerNames() {
		t.metadata.Set(strings.ToLower(k), cfg.Headers[k])
	}
	if w.versioned {
		t.metadata.Set(convert.VersionHeader, convert.Version)
	}
	if cfg.Compression == "gzip" {
		t.options = append(t.options, grpc.UseCompressor(gzip.Name))
	}
	return t, nil
}

func (t *grpcTransport) close() error {
	if err := t.conn.Close(); err != nil && status.Code(err) != codes.Canceled {
		return fmt.Errorf("otlp: closing the connection: %w", err)
	}
	return nil
}

func (t *grpcTransport) send(ctx context.Context, body []byte) (answer, error) {
	var text []byte
	err := t.conn.Invoke(metadata.NewOutgoingContext(ctx, t.metadata), t.wire.method, body, &text, t.options...)
	if err != nil {
		return answer{}, classify(err)
	}
	r, err := t.wire.parse(text, false)
	return r, sink.Permanent(err)
}

// classify sorts errors as the OTLP specification does (https://opentelemetry.io/docs/specs/otlp/#failures).
func classify(err error) error {
	st := status.Convert(err)
	var delay time.Duration
	hasDelay := false
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			delay, hasDelay = info.GetRetryDelay().AsDuration(), true
		}
	}
	switch st.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss:
		return retryAfter(delay, err)
	case codes.ResourceExhausted:
		if hasDelay {
			return retryAfter(delay, err)
		}
	}
	return sink.Permanent(err)
}

// rawCodec carries messages that are encoded already: convert/otlp is the one place that knows how, and the size limit
// and both attribute encodings then hold for gRPC as for HTTP.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) {
	b, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("otlp: cannot send a %T", v)
	}
	return b, nil
}

func (rawCodec) Unmarshal(data []byte, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("otlp: cannot receive into a %T", v)
	}
	*b = append((*b)[:0], data...)
	return nil
}

// Name is the content subtype: to the server the message is ordinary protobuf.
func (rawCodec) Name() string { return "proto" }
