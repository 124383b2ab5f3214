// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"time"

	convert "github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/exporter/sink"
)

// Sink sends profiles to one OTLP receiver.
type Sink struct {
	cfg       Config
	transport transport
}

var _ sink.Sink = (*Sink)(nil)

// transport carries an encoded request. Its errors are those that Export promises.
type transport interface {
	send(ctx context.Context, body []byte) (convert.Response, error)
	close() error
}

// New makes a sink. It reads the certificate files; it does not connect.
func New(cfg Config) (*Sink, error) {
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	switch cfg.Compression {
	case "", "none", "gzip":
	default:
		return nil, fmt.Errorf("otlp: compression %q: want gzip or none", cfg.Compression)
	}
	tlsConfig, err := tlsConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("otlp: %w", err)
	}
	s := &Sink{cfg: cfg}
	switch cfg.Protocol {
	case GRPC:
		s.transport, err = newGRPC(cfg, tlsConfig)
	case "", HTTPProtobuf, HTTPJSON:
		s.transport, err = newHTTP(cfg, tlsConfig)
	default:
		err = fmt.Errorf("protocol %q: want %s, %s or %s", cfg.Protocol, GRPC, HTTPProtobuf, HTTPJSON)
	}
	if err != nil {
		return nil, fmt.Errorf("otlp: %w", err)
	}
	return s, nil
}

func tlsConfig(cfg Config) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.Certificate != "" {
		pem, err := os.ReadFile(cfg.Certificate)
		if err != nil {
			return nil, fmt.Errorf("reading the certificate to trust: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading the certificate to trust: no PEM certificate in %s", cfg.Certificate)
		}
	}
	if cfg.ClientCertificate != "" || cfg.ClientKey != "" {
		pair, err := tls.LoadX509KeyPair(cfg.ClientCertificate, cfg.ClientKey)
		if err != nil {
			return nil, fmt.Errorf("reading the client certificate and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// Name is "otlp".
func (s *Sink) Name() string { return "otlp" }

// Options says to the converter what an item's profile does not say about itself.
func Options(it *sink.Item, version string) convert.Options {
	return convert.Options{
		Resource:     it.Identity.Attributes(),
		ScopeVersion: version,
		Attributes: map[string]string{
			"memory_kind": it.Kind,
			"device":      it.Device,
			"view":        it.View,
			"reason":      it.Reason,
		},
		ProfileID: it.ProfileID,
		Time:      it.Time,
		Duration:  it.Duration,
	}
}

// Export sends one item. An item without a value but 0 is accepted without a request: receivers drop those.
func (s *Sink) Export(ctx context.Context, it *sink.Item) error {
	body, err := s.encode(it)
	if err != nil {
		return s.fail(it, sink.Permanent(err))
	}
	if body == nil {
		return nil
	}
	if len(body) > convert.MaxRequestBytes {
		return s.fail(it, sink.Permanent(fmt.Errorf(
			"the request of %d bytes is above the %d that OTLP allows; a higher HEAPWIRE_SAMPLE_BYTES gives fewer stacks",
			len(body), convert.MaxRequestBytes)))
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	answer, err := s.transport.send(ctx, body)
	if err != nil {
		return s.fail(it, err)
	}
	switch {
	case answer.Rejected > 0:
		// OTLP: a partial success must not be sent again.
		return s.fail(it, sink.Permanent(fmt.Errorf("the receiver rejected %d profiles of it: %s", answer.Rejected, answer.Message)))
	case answer.Message != "":
		s.cfg.Logger.WarnContext(ctx, "the OTLP receiver accepted a profile with a warning",
			"process", it.Process, "dump", it.Base, "message", answer.Message)
	}
	return nil
}

func (s *Sink) encode(it *sink.Item) ([]byte, error) {
	opts := Options(it, s.cfg.Version)
	if s.cfg.Protocol != HTTPJSON {
		return convert.Encode(it.Profile, opts, s.cfg.Encoding)
	}
	pd, err := convert.Build(it.Profile, opts)
	if err != nil || convert.Empty(pd) {
		return nil, err
	}
	return convert.MarshalJSON(pd)
}

func (s *Sink) fail(it *sink.Item, err error) error {
	return fmt.Errorf("sending %s/%s to %s: %w", it.Process, it.Base, s.cfg.Endpoint, err)
}

// Close drops the connections.
func (s *Sink) Close(context.Context) error { return s.transport.close() }

// retryAfter marks err as one that may be tried again after delay; 0 leaves the delay to the pipeline.
func retryAfter(delay time.Duration, err error) error {
	if delay <= 0 {
		return err
	}
	return &sink.RetryAfterError{Delay: delay, Err: err}
}

func userAgent(version string) string {
	if version == "" {
		version = "devel"
	}
	// The form is the exporter specification's: "OTel-OTLP-Exporter-" and the implementation's name.
	return "OTel-OTLP-Exporter-heapwire/" + version
}
