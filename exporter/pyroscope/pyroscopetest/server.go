// SPDX-License-Identifier: Apache-2.0

package pyroscopetest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/google/pprof/profile"
	pushv1 "github.com/grafana/pyroscope/api/gen/proto/go/push/v1"
	"github.com/grafana/pyroscope/api/gen/proto/go/push/v1/pushv1connect"
	"github.com/grafana/pyroscope/api/gen/proto/go/querier/v1/querierv1connect"
)

// The limits of a server with default settings.
const (
	MaxBytes        = 2 << 20 // burst of the rate limit, uncompressed
	MaxSamples      = 16000
	MaxFrames       = 1000
	MaxLabels       = 30
	MaxLabelName    = 1024
	MaxLabelValue   = 2048
	MaxSymbolLength = 65535
	MaxAge          = time.Hour
	MaxAhead        = 10 * time.Minute
)

// Push is one accepted profile.
type Push struct {
	Labels  map[string]string
	Profile *profile.Profile
	Size    int // uncompressed
	Header  http.Header
}

// Server is a running server and what it accepted.
type Server struct {
	querierv1connect.UnimplementedQuerierServiceHandler

	URL string // for PYROSCOPE_SERVER_ADDRESS

	server *httptest.Server
	now    func() time.Time

	mu      sync.Mutex
	pushes  []Push
	faults  []http.HandlerFunc
	arrived chan struct{}
}

// Start runs a server on loopback until Close.
func Start() *Server {
	s := &Server{now: time.Now, arrived: make(chan struct{})}
	route, handler := pushv1connect.NewPusherServiceHandler(s)
	mux := http.NewServeMux()
	mux.Handle(route, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fault := s.nextFault(); fault != nil {
			fault(w, r)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	mux.Handle(querierv1connect.NewQuerierServiceHandler(s))
	s.server = httptest.NewServer(mux)
	s.URL = s.server.URL
	return s
}

// Close stops the server; what it accepted stays.
func (s *Server) Close() { s.server.Close() }

// At sets the server's clock, which decides what is too old.
func (s *Server) At(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = func() time.Time { return t }
}

// Fail makes the next request be answered by f instead; calls queue up.
func (s *Server) Fail(f http.HandlerFunc) { s.FailAfter(0, f) }

// FailAfter makes the request after the next n be answered by f.
func (s *Server) FailAfter(n int, f http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(append(s.faults, make([]http.HandlerFunc, n)...), f)
}

func (s *Server) nextFault() http.HandlerFunc {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.faults) == 0 {
		return nil
	}
	f := s.faults[0]
	s.faults = s.faults[1:]
	return f
}

// Pushes gives what was accepted so far, in order.
func (s *Server) Pushes() []Push {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Push(nil), s.pushes...)
}

// Wait returns once n profiles were accepted, or with ctx's error.
func (s *Server) Wait(ctx context.Context, n int) ([]Push, error) {
	for {
		s.mu.Lock()
		got, arrived := append([]Push(nil), s.pushes...), s.arrived
		s.mu.Unlock()
		if len(got) >= n {
			return got, nil
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return got, fmt.Errorf("pyroscopetest: %d of %d profiles arrived: %w", len(got), n, ctx.Err())
		}
	}
}

// Profiles gives the accepted profiles.
func (s *Server) Profiles() []*profile.Profile {
	var out []*profile.Profile
	for _, p := range s.Pushes() {
		out = append(out, p.Profile)
	}
	return out
}

// Push implements the service. Like the real one it applies a request series by series: what comes before a bad one is kept.
func (s *Server) Push(_ context.Context, req *connect.Request[pushv1.PushRequest]) (*connect.Response[pushv1.PushResponse], error) {
	for _, series := range req.Msg.Series {
		labels := map[string]string{}
		for _, l := range series.Labels {
			if _, ok := labels[l.Name]; ok {
				return nil, invalid("label %s twice", l.Name)
			}
			labels[l.Name] = l.Value
		}
		if err := checkLabels(labels); err != nil {
			return nil, err
		}
		for _, sample := range series.Samples {
			push, err := s.check(sample.RawProfile)
			if err != nil {
				return nil, err
			}
			push.Labels, push.Header = labels, req.Header().Clone()
			s.keep(push)
		}
	}
	return connect.NewResponse(&pushv1.PushResponse{}), nil
}

func (s *Server) keep(p Push) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pushes = append(s.pushes, p)
	close(s.arrived)
	s.arrived = make(chan struct{})
}

func invalid(format string, args ...any) error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}

func checkLabels(labels map[string]string) error {
	if len(labels) > MaxLabels {
		return invalid("profile series has %d label names; limit %d", len(labels), MaxLabels)
	}
	if labels["__name__"] == "" || labels["service_name"] == "" {
		return invalid("no profile name or service name provided")
	}
	for k, v := range labels {
		if len(k) > MaxLabelName || len(v) > MaxLabelValue {
			return invalid("label %.40s is too long", k)
		}
		for _, r := range k {
			if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", r) {
				return invalid("invalid label name %q", k)
			}
		}
	}
	return nil
}

func (s *Server) check(raw []byte) (Push, error) {
	p, err := profile.ParseData(raw)
	if err != nil {
		// A real server answers 500 to what is no pprof.
		return Push{}, connect.NewError(connect.CodeUnknown, err)
	}
	counter := &counter{}
	if err := p.WriteUncompressed(counter); err != nil {
		return Push{}, connect.NewError(connect.CodeUnknown, err)
	}
	if counter.n > MaxBytes {
		return Push{}, connect.NewError(connect.CodeResourceExhausted,
			fmt.Errorf("push rate limit (4.0 MiB) exceeded while adding %.1f MiB", float64(counter.n)/(1<<20)))
	}
	if len(p.Sample) > MaxSamples {
		return Push{}, invalid("the profile has %d samples; limit %d", len(p.Sample), MaxSamples)
	}
	for _, f := range p.Function {
		if len(f.Name) > MaxSymbolLength {
			return Push{}, invalid("a symbol is too long")
		}
	}
	for _, st := range p.SampleType {
		if strings.Contains(st.Type, "-") {
			return Push{}, invalid("sample type contains -")
		}
	}
	s.mu.Lock()
	now := s.now()
	s.mu.Unlock()
	at := time.Unix(0, p.TimeNanos)
	if now.Sub(at) > MaxAge || at.Sub(now) > MaxAhead {
		return Push{}, connect.NewError(connect.CodeInvalidArgument, errors.New("profile is outside of ingestion window"))
	}
	return Push{Profile: p, Size: counter.n}, nil
}

type counter struct{ n int }

func (c *counter) Write(b []byte) (int, error) {
	c.n += len(b)
	return len(b), nil
}
