// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/heapwire/heapwire/exporter/otlp/otlptest"
)

func env(vars map[string]string) func(string) string { return func(k string) string { return vars[k] } }

var silent = slog.New(slog.DiscardHandler)

func TestMetricsGoWhereTheVariablesSay(t *testing.T) {
	r, err := otlptest.Start(t.Context(), otlptest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Shutdown(context.Background())
	sent := 0
	for name, vars := range map[string]map[string]string{
		"http": {"OTEL_EXPORTER_OTLP_ENDPOINT": r.HTTP, "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"},
		"grpc": {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": r.GRPC, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
	} {
		m, err := OpenMetrics(t.Context(), env(vars), "1.2.3", silent)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c, err := m.Provider().Meter("x").Int64Counter("things")
		if err != nil {
			t.Fatal(err)
		}
		c.Add(t.Context(), 7)
		if err := m.Shutdown(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		sent++
		got := r.Metrics()
		if len(got) != sent {
			t.Fatalf("%s: %d requests", name, len(got))
		}
		rm := got[sent-1].ResourceMetrics().At(0)
		if service, _ := rm.Resource().Attributes().Get("service.name"); service.Str() != "heapwire" {
			t.Errorf("%s: resource %v", name, rm.Resource().Attributes().AsRaw())
		}
		if m := rm.ScopeMetrics().At(0).Metrics().At(0); m.Name() != "things" || m.Sum().DataPoints().At(0).IntValue() != 7 {
			t.Errorf("%s: metric %s", name, m.Name())
		}
	}
}

func TestWithoutAnEndpointNothingIsMeasured(t *testing.T) {
	m, err := OpenMetrics(t.Context(), env(nil), "", silent)
	if err != nil || m.Provider() != nil || m.Shutdown(t.Context()) != nil {
		t.Errorf("%v %v", m.Provider(), err)
	}
	if m, err := OpenMetrics(t.Context(), env(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "nonsense"}), "", silent); err == nil || m.Provider() != nil {
		t.Errorf("a faulty variable: %v", err)
	}
}

func TestADeadEndpointIsNotWaitedFor(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m, err := OpenMetrics(t.Context(), env(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://" + l.Addr().String()}), "", silent)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := m.Provider().Meter("x").Int64Counter("things"); err != nil {
		t.Fatal(err)
	} else {
		c.Add(t.Context(), 1)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := m.Shutdown(ctx); err == nil {
		t.Error("no error")
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("waited %v", took)
	}
}

func TestOurOwnProfileIsPushed(t *testing.T) {
	pushed := make(chan *http.Request, 100)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case pushed <- r:
		default:
		}
	}))
	defer srv.Close()
	stop, err := StartProfile(env(map[string]string{"PYROSCOPE_SERVER_ADDRESS": srv.URL, "PYROSCOPE_TENANT_ID": "team"}), "1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	stop()
	select {
	case r := <-pushed:
		if r.Header.Get("X-Scope-OrgID") != "team" {
			t.Errorf("%s %v", r.URL, r.Header)
		}
	case <-time.After(10 * time.Second):
		t.Error("nothing pushed")
	}
	if _, err := StartProfile(env(nil), ""); err == nil {
		t.Error("no error without a server")
	}
}
