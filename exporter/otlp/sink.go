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

	"github.com/google/pprof/profile"

	convert "github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/exporter/sink"
)

// client sends encoded requests of one signal to one receiver.
type client struct {
	cfg       Config
	transport transport
}

// transport carries an encoded request. Its errors are those that Export promises.
type transport interface {
	send(ctx context.Context, body []byte) (answer, error)
	close() error
}

// open makes a client. It reads the certificate files; it does not connect.
func open(cfg Config, w wire) (*client, error) {
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = convert.MaxRequestBytes
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	switch cfg.Compression {
	case "", "none", "gzip":
	default:
		return nil, fmt.Errorf("otlp: compression %q: want gzip or none", cfg.Compression)
	}
	tlsConfig, err := cfg.TLS()
	if err != nil {
		return nil, fmt.Errorf("otlp: %w", err)
	}
	c := &client{cfg: cfg}
	switch cfg.Protocol {
	case GRPC:
		c.transport, err = newGRPC(cfg, w, tlsConfig)
	case "", HTTPProtobuf, HTTPJSON:
		c.transport, err = newHTTP(cfg, w, tlsConfig)
	default:
		err = fmt.Errorf("protocol %q: want %s, %s or %s", cfg.Protocol, GRPC, HTTPProtobuf, HTTPJSON)
	}
	if err != nil {
		return nil, fmt.Errorf("otlp: %w", err)
	}
	return c, nil
}

// send delivers one request and reads the answer: a part that was rejected is an error, and must not be sent again.
func (c *client) send(ctx context.Context, body []byte, of, what string) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	got, err := c.transport.send(ctx, body)
	switch {
	case err != nil:
		return err
	case got.rejected > 0:
		return sink.Permanent(fmt.Errorf("the receiver rejected %d %s of it: %s", got.rejected, what, got.message))
	case got.message != "":
		c.cfg.Logger.WarnContext(ctx, "the OTLP receiver accepted a request with a warning", "endpoint", c.cfg.Endpoint, "of", of, "message", got.message)
	}
	return nil
}

// Destination is the endpoint.
func (c *client) Destination() string { return c.cfg.Endpoint }

// Close drops the connections.
func (c *client) Close(context.Context) error { return c.transport.close() }

// Sink sends profiles to one OTLP receiver.
type Sink struct {
	*client
	progress sink.Progress
}

var (
	_ sink.Sink      = (*Sink)(nil)
	_ sink.Addressed = (*Sink)(nil)
)

// New makes a sink for profiles.
func New(cfg Config) (*Sink, error) {
	c, err := open(cfg, wires[Profiles])
	if err != nil {
		return nil, err
	}
	return &Sink{client: c}, nil
}

// TLS is what the certificate settings make.
func (cfg Config) TLS() (*tls.Config, error) {
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

// Export sends one item, in several requests if one would be above what OTLP allows: each has a part of the samples, and
// an id of its own. After an error that may be retried the next Export of the item goes on where this one stopped. An item
// without a value but 0 is accepted without a request: receivers drop those.
func (s *Sink) Export(ctx context.Context, it *sink.Item) error {
	bodies, err := s.split(it, it.Profile, it.ProfileID)
	if err != nil {
		return s.fail(it, sink.Permanent(err))
	}
	for i := s.progress.Done(it.ProfileID); i < len(bodies); i++ {
		if err := s.send(ctx, bodies[i], it.Process+"/"+it.Base, "profiles"); err != nil {
			if sink.IsPermanent(err) {
				s.progress.Forget(it.ProfileID)
			} else {
				s.progress.Keep(it.ProfileID, i)
			}
			if len(bodies) > 1 {
				err = fmt.Errorf("part %d of %d: %w", i+1, len(bodies), err)
			}
			return s.fail(it, err)
		}
	}
	s.progress.Forget(it.ProfileID)
	return nil
}

// split encodes a profile as one request, or as several with parts of its samples, whose sum it is.
func (s *Sink) split(it *sink.Item, p *profile.Profile, id [16]byte) ([][]byte, error) {
	body, err := s.encode(it, p, id)
	if err != nil || body == nil {
		return nil, err
	}
	if len(body) <= s.cfg.MaxBytes {
		return [][]byte{body}, nil
	}
	if len(p.Sample) < 2 {
		return nil, fmt.Errorf("one stack alone takes %d bytes, OTLP allows %d in a request", len(body), s.cfg.MaxBytes)
	}
	var bodies [][]byte
	for _, piece := range Cut(p, id, len(body)/s.cfg.MaxBytes+1) {
		more, err := s.split(it, piece.Profile, piece.ID)
		if err != nil {
			return nil, err
		}
		bodies = append(bodies, more...)
	}
	return bodies, nil
}

// Piece is a part of a profile, with an id of its own.
type Piece struct {
	Profile *profile.Profile
	ID      [16]byte
}

// Cut makes about n pieces of a profile by the order of its samples; their sum is the profile. They share its tables.
func Cut(p *profile.Profile, id [16]byte, n int) []Piece {
	size := max(len(p.Sample)/max(n, 1), 1)
	var pieces []Piece
	for from := 0; from < len(p.Sample); from += size {
		pieces = append(pieces, Piece{ID: sink.PartID(id, from), Profile: &profile.Profile{
			SampleType: p.SampleType, DefaultSampleType: p.DefaultSampleType, PeriodType: p.PeriodType, Period: p.Period,
			Sample: p.Sample[from:min(from+size, len(p.Sample))], Mapping: p.Mapping, Location: p.Location, Function: p.Function,
			TimeNanos: p.TimeNanos, DurationNanos: p.DurationNanos, Comments: p.Comments, DocURL: p.DocURL,
			DropFrames: p.DropFrames, KeepFrames: p.KeepFrames,
		}})
	}
	return pieces
}

func (s *Sink) encode(it *sink.Item, p *profile.Profile, id [16]byte) ([]byte, error) {
	opts := Options(it, s.cfg.Version)
	opts.ProfileID = id
	if s.cfg.Protocol != HTTPJSON {
		return convert.Encode(p, opts, s.cfg.Encoding)
	}
	pd, err := convert.Build(p, opts)
	if err != nil || convert.Empty(pd) {
		return nil, err
	}
	return convert.MarshalJSON(pd)
}

func (c *client) fail(it *sink.Item, err error) error {
	return fmt.Errorf("sending %s/%s to %s: %w", it.Process, it.Base, c.cfg.Endpoint, err)
}

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
