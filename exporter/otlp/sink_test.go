// SPDX-License-Identifier: Apache-2.0

package otlp_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	convert "github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/convert/otlp/profiletest"
	"github.com/heapwire/heapwire/exporter/otlp"
	"github.com/heapwire/heapwire/exporter/otlp/otlptest"
	"github.com/heapwire/heapwire/exporter/sink"
)

func item(p *profile.Profile) *sink.Item {
	return &sink.Item{
		Identity: sink.Identity{
			Host: "node7", PID: 4242, StartTicks: 8123456, StartTime: profiletest.When.Add(-time.Hour), ParentPID: 4200,
			Executable: "/usr/bin/python3.11", PythonVersion: "3.11.7", ServiceName: "trainer", Rank: "3", LocalRank: "1", WorldSize: "8",
			Resource: map[string]string{"service.version": "1.2.3", "team": "rl"},
		},
		Process: "node7-4242-8123456", Base: "000003.interval", Seq: 3, Reason: "interval",
		Time: profiletest.When, Duration: time.Minute, Kind: "host", View: "live",
		Profile: p, ProfileID: sink.ProfileID("node7", 4242, 8123456, 3, "host", "live"),
	}
}

func start(t *testing.T, opts otlptest.Options) *otlptest.Receiver {
	t.Helper()
	r, err := otlptest.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := r.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	return r
}

func open(t *testing.T, cfg otlp.Config) *otlp.Sink {
	t.Helper()
	s, err := otlp.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := s.Close(context.Background()); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
	})
	return s
}

// ways are all forms of a request that a receiver must understand.
func ways(r *otlptest.Receiver) map[string]otlp.Config {
	path := "/" + convert.HTTPPath
	return map[string]otlp.Config{
		"http/protobuf":        {Endpoint: r.HTTP + path},
		"http/protobuf gzip":   {Endpoint: r.HTTP + path, Compression: "gzip"},
		"http/protobuf inline": {Endpoint: r.HTTP + path, Encoding: convert.Inline},
		"http/json":            {Endpoint: r.HTTP + path, Protocol: otlp.HTTPJSON},
		"grpc":                 {Endpoint: r.GRPC, Protocol: otlp.GRPC},
		"grpc gzip":            {Endpoint: r.GRPC, Protocol: otlp.GRPC, Compression: "gzip"},
		"grpc inline":          {Endpoint: strings.TrimPrefix(r.GRPC, "http://"), Protocol: otlp.GRPC, Insecure: true, Encoding: convert.Inline},
	}
}

func TestTotalsArriveStackByStack(t *testing.T) {
	profiles := map[string]*profile.Profile{
		"heap":      profiletest.Heap(),
		"generated": profiletest.Generate(profiletest.Shape{Stacks: 500, Depth: 25, Functions: 400, Types: 4, Seed: 7}),
	}
	for name := range ways(&otlptest.Receiver{}) {
		t.Run(name, func(t *testing.T) {
			for shape, p := range profiles {
				r := start(t, otlptest.Options{})
				s := open(t, ways(r)[name])
				if err := s.Export(t.Context(), item(p)); err != nil {
					t.Fatal(err)
				}
				got, err := otlptest.Stacks(r.Received()...)
				if err != nil {
					t.Fatal(err)
				}
				want := otlptest.PprofStacks(p)
				if len(got) != len(want) || len(got) == 0 {
					t.Errorf("%s: %d stacks arrived of %d", shape, len(got), len(want))
				}
				for stack, values := range want {
					if !maps.Equal(got[stack], values) {
						t.Fatalf("%s: stack\n%s arrived as %v, want %v", shape, stack, got[stack], values)
					}
				}
				if !maps.Equal(got.Sum(), want.Sum()) {
					t.Errorf("%s: totals %v, want %v", shape, got.Sum(), want.Sum())
				}
			}
		})
	}
}

func TestResourceOfTheProcessArrives(t *testing.T) {
	want := map[string]any{
		"service.name": "trainer", "service.version": "1.2.3", "team": "rl", "host.name": "node7",
		"process.pid": int64(4242), "process.parent_pid": int64(4200), "process.creation.time": "2026-11-29T11:00:00Z",
		"process.executable.path": "/usr/bin/python3.11", "process.executable.name": "python3.11",
		"process.runtime.name": "cpython", "process.runtime.version": "3.11.7",
		"heapwire.rank": int64(3), "heapwire.local_rank": int64(1), "heapwire.world_size": int64(8),
	}
	r := start(t, otlptest.Options{})
	n := 0
	for name, cfg := range ways(r) {
		cfg.Version = "0.1.0"
		if err := open(t, cfg).Export(t.Context(), item(profiletest.Heap())); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n++
		got, err := r.Wait(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		rp := got[n-1].ResourceProfiles().At(0)
		if attrs := rp.Resource().Attributes().AsRaw(); !maps.Equal(attrs, want) {
			t.Errorf("%s: resource %v, want %v", name, attrs, want)
		}
		if scope := rp.ScopeProfiles().At(0).Scope(); scope.Name() != convert.ScopeName || scope.Version() != "0.1.0" {
			t.Errorf("%s: scope %q %q", name, scope.Name(), scope.Version())
		}
		if id := rp.ScopeProfiles().At(0).Profiles().At(0).ProfileID(); id != item(nil).ProfileID {
			t.Errorf("%s: profile id %v", name, id)
		}
	}
}

func TestExportLeavesTheItemAlone(t *testing.T) {
	r := start(t, otlptest.Options{})
	it := item(profiletest.Heap())
	before := it.Profile.String()
	s := open(t, ways(r)["grpc"])
	for range 2 {
		if err := s.Export(t.Context(), it); err != nil {
			t.Fatal(err)
		}
	}
	if it.Profile.String() != before {
		t.Error("the profile changed")
	}
	got := r.Received()
	if len(got) != 2 || firstID(got[0]) != firstID(got[1]) {
		t.Error("a repeat cannot be recognised by its profile id")
	}
}

func firstID(pd pprofile.Profiles) pprofile.ProfileID {
	return pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0).ProfileID()
}

// otlpreceiver answers 200 to a request without samples and drops it.
func TestNothingLiveSendsNothing(t *testing.T) {
	var asked bool
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer srv.Close()
	p := profiletest.New(profiletest.Inuse...)
	p.Add([]int64{0, 0})
	if err := open(t, otlp.Config{Endpoint: srv.URL}).Export(t.Context(), item(p.Profile)); err != nil || asked {
		t.Errorf("error %v, request sent: %v", err, asked)
	}
}

// The canary of the test above.
func TestReceiverStillDropsRequestsWithoutSamples(t *testing.T) {
	r := start(t, otlptest.Options{})
	body, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(pprofile.NewProfiles())
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(r.HTTP+"/"+convert.HTTPPath, "application/x-protobuf", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 || len(r.Received()) != 0 {
		t.Errorf("%s, %d requests kept", resp.Status, len(r.Received()))
	}
}

func TestAStackAboveTheLimitIsRefusedHere(t *testing.T) {
	p := profiletest.New(profiletest.Inuse...)
	f := p.Func(strings.Repeat("x", convert.MaxRequestBytes), "", "f.py", 1)
	p.Add([]int64{1, 1}, p.Python(f, 1))
	for _, protocol := range []string{otlp.HTTPProtobuf, otlp.GRPC} {
		s := open(t, otlp.Config{Endpoint: "http://127.0.0.1:1", Protocol: protocol})
		err := s.Export(t.Context(), item(p.Profile))
		if !sink.IsPermanent(err) || !strings.Contains(err.Error(), "OTLP allows 67108864") || !strings.Contains(err.Error(), "node7-4242-8123456/000003.interval") {
			t.Errorf("%s: %v", protocol, cut(err))
		}
	}
}

func TestARequestAboveTheLimitIsSplit(t *testing.T) {
	p := profiletest.Generate(profiletest.Shape{Stacks: 500, Depth: 25, Functions: 400, Types: 4, Seed: 7})
	const limit = 30000
	for name := range ways(&otlptest.Receiver{}) {
		t.Run(name, func(t *testing.T) {
			r := start(t, otlptest.Options{})
			cfg := ways(r)[name]
			cfg.MaxBytes = limit
			// The second request fails once: the first must not be sent again.
			sent := 0
			r2 := start(t, otlptest.Options{Consume: func(context.Context, pprofile.Profiles) error {
				if sent++; sent == 2 {
					return errors.New("not now")
				}
				return nil
			}})
			cfg2 := ways(r2)[name]
			cfg2.MaxBytes = limit
			if err := open(t, cfg).Export(t.Context(), item(p)); err != nil {
				t.Fatal(err)
			}
			s := open(t, cfg2)
			if err := s.Export(t.Context(), item(p)); err == nil || sink.IsPermanent(err) || !strings.Contains(err.Error(), "part 2 of") {
				t.Fatalf("error %v", err)
			}
			if err := s.Export(t.Context(), item(p)); err != nil {
				t.Fatal(err)
			}
			for _, r := range []*otlptest.Receiver{r, r2} {
				received := r.Received()
				if len(received) < 3 {
					t.Fatalf("%d requests", len(received))
				}
				ids := map[pprofile.ProfileID]bool{}
				for _, pd := range received {
					ids[firstID(pd)] = true
				}
				if len(ids) != len(received) || !ids[item(nil).ProfileID] {
					t.Errorf("%d requests with %d ids", len(received), len(ids))
				}
				got, err := otlptest.Stacks(received...)
				if err != nil {
					t.Fatal(err)
				}
				if want := otlptest.PprofStacks(p); !maps.Equal(got.Sum(), want.Sum()) || len(got) != len(want) {
					t.Errorf("sum of the parts %v in %d stacks, want %v in %d", got.Sum(), len(got), want.Sum(), len(want))
				}
			}
		})
	}
}

func cut(err error) string { return fmt.Sprintf("%.300v", err) }

// The receiver's default limits are 4 MiB for gRPC and 20 MiB for HTTP; the harness raises them.
func TestLargeRequestsPass(t *testing.T) {
	p := profiletest.New(profiletest.Inuse...)
	for i := range 24 {
		f := p.Func(fmt.Sprintf("%d%s", i, strings.Repeat("x", 1<<20)), "", "f.py", 1)
		p.Add([]int64{1, 1}, p.Python(f, 1))
	}
	r := start(t, otlptest.Options{})
	for _, name := range []string{"http/protobuf", "grpc"} {
		if err := open(t, ways(r)[name]).Export(t.Context(), item(p.Profile)); err != nil {
			t.Errorf("%s: %v", name, cut(err))
		}
	}
	if n := len(r.Received()); n != 2 {
		t.Errorf("%d requests arrived", n)
	}
}

// fake is an HTTP receiver that keeps the request and answers as it is told.
func fake(t *testing.T, answer http.HandlerFunc) (url string, request *http.Request, body *bytes.Buffer) {
	t.Helper()
	request, body = &http.Request{}, &bytes.Buffer{}
	var mu sync.Mutex // of a request that was given up, while the next one comes
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		mu.Lock()
		body.Reset()
		body.Write(text)
		*request = *r
		mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, request, body
}

func ok(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func TestHeadersOfARequest(t *testing.T) {
	url, req, body := fake(t, ok)
	s := open(t, otlp.Config{
		Endpoint: url + "/custom", Compression: "gzip", Version: "1.2.3",
		Headers: map[string]string{"Authorization": "Bearer secret", "X-Scope-OrgID": "team", "Content-Type": "text/plain"},
	})
	if err := s.Export(t.Context(), item(profiletest.Heap())); err != nil {
		t.Fatal(err)
	}
	if req.Method != http.MethodPost || req.URL.Path != "/custom" {
		t.Errorf("%s %s", req.Method, req.URL.Path)
	}
	for k, want := range map[string]string{
		"Otlp-Profiles-Development-Version": "1",
		"Content-Type":                      "application/x-protobuf", // a variable cannot spoil it
		"Content-Encoding":                  "gzip",
		"User-Agent":                        "OTel-OTLP-Exporter-heapwire/1.2.3",
		"Authorization":                     "Bearer secret",
		"X-Scope-Orgid":                     "team",
	} {
		if got := req.Header.Values(k); len(got) != 1 || got[0] != want {
			t.Errorf("header %s: %q, want %q", k, got, want)
		}
	}
	gz, err := gzip.NewReader(body)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(gz)
	if err != nil {
		t.Fatal(err)
	}
	if pd, err := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(raw); err != nil || pd.SampleCount() == 0 {
		t.Errorf("body: %v", err)
	}
}

func TestReceiverRefusesAnotherDevelopmentVersion(t *testing.T) {
	r := start(t, otlptest.Options{})
	req, _ := http.NewRequest(http.MethodPost, r.HTTP+"/"+convert.HTTPPath, strings.NewReader(""))
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set(convert.VersionHeader, "2")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 400 || convert.Version != "1" {
		t.Errorf("%s for version 2; ours is %s", resp.Status, convert.Version)
	}
}

func TestAnswersOverHTTP(t *testing.T) {
	statusBody, err := proto.Marshal(&status.Status{Code: 3, Message: "no such tenant"})
	if err != nil {
		t.Fatal(err)
	}
	partial := pprofileotlp.NewExportResponse()
	partial.PartialSuccess().SetRejectedProfiles(2)
	partial.PartialSuccess().SetErrorMessage("too old")
	partialBody, err := partial.MarshalProto()
	if err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)
	f := func(name string, code int, header map[string]string, body, wantText string, wantPermanent bool, wantDelay time.Duration) {
		t.Helper()
		url, _, _ := fake(t, func(w http.ResponseWriter, _ *http.Request) {
			for k, v := range header {
				w.Header().Set(k, v)
			}
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		})
		err := open(t, otlp.Config{Endpoint: url}).Export(t.Context(), item(profiletest.Heap()))
		if wantText == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			return
		}
		if err == nil || !strings.Contains(err.Error(), wantText) {
			t.Errorf("%s: error %v, want %q", name, err, wantText)
			return
		}
		if got := sink.IsPermanent(err); got != wantPermanent {
			t.Errorf("%s: permanent %v, want %v", name, got, wantPermanent)
		}
		var after *sink.RetryAfterError
		delay := time.Duration(0)
		if errors.As(err, &after) {
			delay = after.Delay
		}
		if delay > wantDelay || delay < wantDelay-time.Minute || (delay == 0) != (wantDelay == 0) {
			t.Errorf("%s: delay %v, want %v", name, delay, wantDelay)
		}
	}
	pb := map[string]string{"Content-Type": "application/x-protobuf"}
	with := func(k, v string) map[string]string {
		m := maps.Clone(pb)
		m[k] = v
		return m
	}
	f("success", 200, pb, "\n\x00", "", false, 0)
	f("success without a body", 200, nil, "", "", false, 0)
	f("success in JSON", 200, map[string]string{"Content-Type": "application/json; charset=utf-8"}, `{"partialSuccess":{}}`, "", false, 0)
	f("accepted", 202, nil, "", "", false, 0)
	f("partial success", 200, pb, string(partialBody), "rejected 2 profiles of it: too old", true, 0)
	f("a web page", 200, map[string]string{"Content-Type": "text/html"}, "<html>log in</html>", "is no OTLP", true, 0)
	f("garbage", 200, pb, "\xff\xff\xff", "decoding the answer", true, 0)
	f("redirect", 302, map[string]string{"Location": "http://127.0.0.1:1/"}, "", "302 Found", true, 0)
	f("bad request", 400, pb, string(statusBody), "400 Bad Request: no such tenant", true, 0)
	f("bad request in JSON", 400, map[string]string{"Content-Type": "application/json"}, `{"code":3,"message":"no such tenant","x":1}`, "no such tenant", true, 0)
	f("unauthorised", 401, nil, "", "401 Unauthorized: no message", true, 0)
	f("not found", 404, map[string]string{"Content-Type": "text/plain"}, "404 page not found", "404 page not found", true, 0)
	f("too large", 413, nil, "", "413", true, 0)
	f("server error", 500, pb, string(statusBody), "500", true, 0)
	f("too many, when", 429, with("Retry-After", "30"), string(statusBody), "429", false, 30*time.Second)
	f("too many, until", 429, with("Retry-After", later), "", "429", false, time.Hour)
	f("too many, until nonsense", 429, with("Retry-After", "soon"), "", "429", false, 0)
	f("too many", 429, nil, "", "429", false, 0)
	f("bad gateway", 502, nil, "", "502", false, 0)
	f("unavailable", 503, with("Retry-After", "7"), "", "503", false, 7*time.Second)
	f("gateway timeout", 504, nil, "", "504", false, 0)
}

func TestWarningOfAReceiverIsLogged(t *testing.T) {
	url, _, _ := fake(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"partialSuccess": map[string]any{"errorMessage": "deprecated"}})
	})
	var log bytes.Buffer
	s := open(t, otlp.Config{Endpoint: url, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err := s.Export(t.Context(), item(profiletest.Heap())); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "deprecated") || !strings.Contains(log.String(), "000003.interval") {
		t.Errorf("log: %s", log.String())
	}
}

func TestSlowReceiverCostsTheTimeoutOnly(t *testing.T) {
	release := make(chan struct{})
	url, _, _ := fake(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	for name, call := range map[string]func() error{
		"own timeout": func() error {
			return open(t, otlp.Config{Endpoint: url, Timeout: 50 * time.Millisecond}).Export(t.Context(), item(profiletest.Heap()))
		},
		"caller's deadline": func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			return open(t, otlp.Config{Endpoint: url, Timeout: time.Hour}).Export(ctx, item(profiletest.Heap()))
		},
	} {
		begin := time.Now()
		err := call()
		if !errors.Is(err, context.DeadlineExceeded) || sink.IsPermanent(err) {
			t.Errorf("%s: %v", name, err)
		}
		if d := time.Since(begin); d > time.Minute {
			t.Errorf("%s: took %v", name, d)
		}
	}
}

func TestReceiverThatIsDownMayBeTriedAgain(t *testing.T) {
	for _, protocol := range []string{otlp.HTTPProtobuf, otlp.GRPC} {
		endpoint := "http://127.0.0.1:1" // a port that no program is given
		err := open(t, otlp.Config{Endpoint: endpoint, Protocol: protocol}).Export(t.Context(), item(profiletest.Heap()))
		if err == nil || sink.IsPermanent(err) || !strings.Contains(err.Error(), "refused") || !strings.Contains(err.Error(), endpoint) {
			t.Errorf("%s: %v", protocol, err)
		}
	}
}

func TestErrorsOfTheRealReceiver(t *testing.T) {
	for permanent, refusal := range map[bool]error{
		true:  consumererror.NewPermanent(errors.New("out of taste")),
		false: errors.New("out of room"),
	} {
		r := start(t, otlptest.Options{Consume: func(context.Context, pprofile.Profiles) error { return refusal }})
		for name, cfg := range ways(r) {
			err := open(t, cfg).Export(t.Context(), item(profiletest.Heap()))
			if err == nil || !strings.Contains(err.Error(), "out of") {
				t.Errorf("%s: %v", name, err)
			}
			if sink.IsPermanent(err) != permanent {
				t.Errorf("%s: %v: permanent %v, want %v", name, err, !permanent, permanent)
			}
		}
		if n := len(r.Received()); n != 0 {
			t.Errorf("%d requests kept", n)
		}
	}
}

// grpcServer answers as it is told and keeps the metadata.
type grpcServer struct {
	pprofileotlp.UnimplementedGRPCServer
	answer func() (pprofileotlp.ExportResponse, error)
	md     metadata.MD
}

func (g *grpcServer) Export(ctx context.Context, _ pprofileotlp.ExportRequest) (pprofileotlp.ExportResponse, error) {
	g.md, _ = metadata.FromIncomingContext(ctx)
	return g.answer()
}

func serveGRPC(t *testing.T, g *grpcServer) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	pprofileotlp.RegisterGRPCServer(srv, g)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	return "http://" + l.Addr().String()
}

func TestAnswersOverGRPC(t *testing.T) {
	g := &grpcServer{}
	s := open(t, otlp.Config{Endpoint: serveGRPC(t, g), Protocol: otlp.GRPC, Version: "1.2.3", Headers: map[string]string{"Authorization": "Bearer secret"}})
	f := func(code codes.Code, info *errdetails.RetryInfo, wantPermanent bool, wantDelay time.Duration) {
		t.Helper()
		st := grpcstatus.New(code, "because")
		if info != nil {
			var err error
			if st, err = st.WithDetails(info); err != nil {
				t.Fatal(err)
			}
		}
		g.answer = func() (pprofileotlp.ExportResponse, error) { return pprofileotlp.NewExportResponse(), st.Err() }
		err := s.Export(t.Context(), item(profiletest.Heap()))
		if err == nil || !strings.Contains(err.Error(), "because") {
			t.Fatalf("%v: %v", code, err)
		}
		if sink.IsPermanent(err) != wantPermanent {
			t.Errorf("%v: permanent %v, want %v", code, !wantPermanent, wantPermanent)
		}
		var after *sink.RetryAfterError
		if errors.As(err, &after) != (wantDelay > 0) || after != nil && after.Delay != wantDelay {
			t.Errorf("%v: %v, want a delay of %v", code, after, wantDelay)
		}
	}
	info := &errdetails.RetryInfo{RetryDelay: durationpb.New(9 * time.Second)}
	for _, code := range []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss} {
		f(code, nil, false, 0)
	}
	for _, code := range []codes.Code{
		codes.Unknown, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.Unauthenticated,
		codes.FailedPrecondition, codes.Unimplemented, codes.Internal,
	} {
		f(code, nil, true, 0)
	}
	f(codes.Unavailable, info, false, 9*time.Second)
	f(codes.ResourceExhausted, nil, true, 0)
	f(codes.ResourceExhausted, info, false, 9*time.Second)
	f(codes.ResourceExhausted, &errdetails.RetryInfo{}, false, 0)

	g.answer = func() (pprofileotlp.ExportResponse, error) {
		r := pprofileotlp.NewExportResponse()
		r.PartialSuccess().SetRejectedProfiles(1)
		r.PartialSuccess().SetErrorMessage("too old")
		return r, nil
	}
	if err := s.Export(t.Context(), item(profiletest.Heap())); !sink.IsPermanent(err) || !strings.Contains(err.Error(), "rejected 1 profiles of it: too old") {
		t.Errorf("partial success: %v", err)
	}
	for k, want := range map[string]string{"otlp-profiles-development-version": "1", "authorization": "Bearer secret"} {
		if got := g.md.Get(k); len(got) != 1 || got[0] != want {
			t.Errorf("metadata %s: %q", k, got)
		}
	}
	if ua := g.md.Get("user-agent"); len(ua) != 1 || !strings.HasPrefix(ua[0], "OTel-OTLP-Exporter-heapwire/1.2.3 ") {
		t.Errorf("user agent %q", ua)
	}
}

// A receiver with its default settings refuses more than 4 MiB over gRPC, for ever.
func TestGRPCReceiverWithASmallLimitIsPermanent(t *testing.T) {
	p := profiletest.New(profiletest.Inuse...)
	p.Add([]int64{1, 1}, p.Python(p.Func(strings.Repeat("x", 5<<20), "", "f.py", 1), 1))
	g := &grpcServer{answer: func() (pprofileotlp.ExportResponse, error) { return pprofileotlp.NewExportResponse(), nil }}
	err := open(t, otlp.Config{Endpoint: serveGRPC(t, g), Protocol: otlp.GRPC}).Export(t.Context(), item(p.Profile))
	if !sink.IsPermanent(err) || grpcstatus.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v", cut(err))
	}
}

func TestSlowGRPCReceiver(t *testing.T) {
	release := make(chan struct{})
	g := &grpcServer{answer: func() (pprofileotlp.ExportResponse, error) {
		<-release
		return pprofileotlp.NewExportResponse(), nil
	}}
	s := open(t, otlp.Config{Endpoint: serveGRPC(t, g), Protocol: otlp.GRPC, Timeout: 50 * time.Millisecond})
	defer close(release)
	if err := s.Export(t.Context(), item(profiletest.Heap())); grpcstatus.Code(err) != codes.DeadlineExceeded || sink.IsPermanent(err) {
		t.Errorf("%v", err)
	}
}

func TestAProfileThatIsNoneIsPermanent(t *testing.T) {
	p := profiletest.Heap()
	p.Sample[0].Value = nil
	if err := open(t, otlp.Config{Endpoint: "http://127.0.0.1:1"}).Export(t.Context(), item(p)); !sink.IsPermanent(err) {
		t.Errorf("%v", err)
	}
}
