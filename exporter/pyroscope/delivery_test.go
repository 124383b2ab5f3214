// SPDX-License-Identifier: Apache-2.0

package pyroscope_test

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/otlp/profiletest"
	"github.com/heapwire/heapwire/exporter/pyroscope"
	"github.com/heapwire/heapwire/exporter/pyroscope/pyroscopetest"
	"github.com/heapwire/heapwire/exporter/sink"
)

// counted makes the nth dump of a process in which each function has live bytes and has ever allocated so many.
func counted(seq uint64, reason string, functions map[string][2]int64) *sink.Item {
	b := profiletest.New(append(profiletest.Inuse, profiletest.Alloc...)...)
	for name, v := range functions {
		b.Add([]int64{1, v[0], v[1] / 10, v[1]}, b.Python(b.Func(name, "", "f.py", 1), 1))
	}
	it := item(b.Profile)
	it.Seq, it.Reason = seq, reason
	it.Base = fmt.Sprintf("%06d.%s", seq, reason)
	it.ProfileID = sink.ProfileID("node7", 4242, 8123456, seq, "host", "live")
	return it
}

// allocated sums what a push says was allocated; nil if it says nothing of that.
func allocated(p pyroscopetest.Push) map[string]int64 {
	for _, st := range p.Profile.SampleType {
		if st.Type == "alloc_space" {
			return byStack([]*profile.Profile{p.Profile}, "alloc_space")
		}
	}
	return nil
}

func TestAllocationsAreSentAsDifferences(t *testing.T) {
	srv := start(t)
	s := open(t, pyroscope.Config{Address: srv.URL})
	one := map[string][2]int64{"f": {100, 1000}, "g": {0, 500}}
	two := map[string][2]int64{"f": {100, 1600}, "g": {0, 500}, "h": {7, 70}}
	three := map[string][2]int64{"f": {0, 1600}, "g": {0, 500}, "h": {7, 80}}
	for i, functions := range []map[string][2]int64{one, two, three} {
		if err := s.Export(t.Context(), counted(uint64(i+1), "interval", functions)); err != nil {
			t.Fatal(err)
		}
	}
	want := []map[string]int64{
		{"f (f.py)": 1000, "g (f.py)": 500}, // the first dump counts from the process's start
		{"f (f.py)": 600, "h (f.py)": 70},
		{"h (f.py)": 10},
	}
	for i, p := range srv.Pushes() {
		if got := allocated(p); !maps.Equal(got, want[i]) {
			t.Errorf("push %d: %v, want %v", i+1, got, want[i])
		}
	}
	if got := byStack(srv.Profiles(), "inuse_space"); got["f (f.py)"] != 200 || got["h (f.py)"] != 14 {
		t.Errorf("live: %v", got)
	}
}

func TestADifferenceNeedsAPredecessor(t *testing.T) {
	srv := start(t)
	s := open(t, pyroscope.Config{Address: srv.URL}) // as after a restart
	for seq := uint64(5); seq <= 6; seq++ {
		if err := s.Export(t.Context(), counted(seq, "interval", map[string][2]int64{"f": {100, int64(seq) * 1000}})); err != nil {
			t.Fatal(err)
		}
	}
	pushes := srv.Pushes()
	if got := allocated(pushes[0]); got != nil {
		t.Errorf("without a predecessor: %v", got)
	}
	if got := allocated(pushes[1]); got["f (f.py)"] != 1000 {
		t.Errorf("with one: %v", got)
	}
	if n := s.Counts()[pyroscope.CountNoDelta]; n != 1 {
		t.Errorf("counted %d", n)
	}
	// What comes again, or late, is nobody's successor.
	if err := s.Export(t.Context(), counted(4, "interval", map[string][2]int64{"f": {100, 4000}})); err != nil {
		t.Fatal(err)
	}
	if err := s.Export(t.Context(), counted(7, "interval", map[string][2]int64{"f": {100, 7500}})); err != nil {
		t.Fatal(err)
	}
	pushes = srv.Pushes()
	if late, next := allocated(pushes[2]), allocated(pushes[3]); late != nil || next["f (f.py)"] != 1500 {
		t.Errorf("late %v, next %v", late, next)
	}
}

// Whatever happens to one push, the sum of all is what was allocated, or less where nobody knows, never more.
func TestDifferencesAddUpOverFailures(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault http.HandlerFunc
		again bool // the pipeline tries again
		want  int64
	}{
		{"refused", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusBadRequest) }, false, 3000},
		{"unavailable, then accepted", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusServiceUnavailable) }, true, 3000},
		{"accepted, and the answer was lost", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false, 2000},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := start(t)
			s := open(t, pyroscope.Config{Address: srv.URL})
			srv.FailAfter(1, c.fault)
			for seq := uint64(1); seq <= 3; seq++ {
				it := counted(seq, "interval", map[string][2]int64{"f": {100, int64(seq) * 1000}})
				err := s.Export(t.Context(), it)
				if (err != nil) != (seq == 2) || err != nil && sink.IsPermanent(err) == c.again {
					t.Fatalf("dump %d: %v", seq, err)
				}
				if err != nil && c.again {
					if err := s.Export(t.Context(), it); err != nil {
						t.Fatal(err)
					}
				}
			}
			if got := byStack(srv.Profiles(), "alloc_space")["f (f.py)"]; got != c.want {
				t.Errorf("sum %d, want %d", got, c.want)
			}
		})
	}
}

func TestStampsThatTheServerRefuses(t *testing.T) {
	for _, c := range []struct {
		name  string
		age   time.Duration
		stale pyroscope.Stale
		sent  bool
		count string
	}{
		{"fresh", time.Minute, "", true, ""},
		{"just in time", 59 * time.Minute, "", true, ""},
		{"stale", 61 * time.Minute, "", false, pyroscope.CountStale},
		{"stale, restamped", 61 * time.Minute, pyroscope.RestampStale, true, pyroscope.CountRestamped},
		{"a little ahead", -9 * time.Minute, "", true, ""},
		{"the clock was set back", -24 * time.Hour, "", true, pyroscope.CountRestamped},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := start(t)
			now := profiletest.When.Add(c.age)
			srv.At(now)
			s := open(t, pyroscope.Config{Address: srv.URL, Stale: c.stale, Now: func() time.Time { return now }})
			err := s.Export(t.Context(), item(profiletest.Heap()))
			if (err == nil) != c.sent || err != nil && !sink.IsPermanent(err) {
				t.Fatalf("error %v", err)
			}
			if n := s.Counts(); c.count != "" && n[c.count] != 1 || c.count == "" && n[pyroscope.CountStale]+n[pyroscope.CountRestamped] > 0 {
				t.Errorf("counts %v", s.Counts())
			}
			if c.sent {
				want := profiletest.When
				if c.count != "" {
					want = now
				}
				if got := srv.Profiles()[0].TimeNanos; got != want.UnixNano() {
					t.Errorf("stamp %v, want %v", time.Unix(0, got).UTC(), want)
				}
			}
		})
	}
}

func TestHeadersOfOnesOwn(t *testing.T) {
	srv := start(t)
	cfg := pyroscope.Config{Address: srv.URL, Headers: map[string]string{"X-Team": "rl", "content-type": "text/plain"}}
	if err := open(t, cfg).Export(t.Context(), item(profiletest.Heap())); err != nil {
		t.Fatal(err)
	}
	h := srv.Pushes()[0].Header
	if h.Get("X-Team") != "rl" || h.Get("Content-Type") != "application/proto" {
		t.Errorf("headers %v", h)
	}
	env := map[string]string{"PYROSCOPE_SERVER_ADDRESS": "http://p", "PYROSCOPE_HTTP_HEADERS": `{"X-Team": "rl"}`, "HEAPWIRE_PYROSCOPE_STALE": "restamp"}
	get := func(k string) string { return env[k] }
	if cfg, _, err := pyroscope.ConfigFromEnv(get); err != nil || cfg.Headers["X-Team"] != "rl" || cfg.Stale != pyroscope.RestampStale {
		t.Errorf("%+v, %v", cfg, err)
	}
	for _, bad := range []string{`X-Team=s3cret`, `{"X Team": "s3cret"}`} {
		env["PYROSCOPE_HTTP_HEADERS"] = bad
		if _, _, err := pyroscope.ConfigFromEnv(get); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	env["PYROSCOPE_HTTP_HEADERS"], env["HEAPWIRE_PYROSCOPE_STALE"] = "", "keep"
	if _, _, err := pyroscope.ConfigFromEnv(get); err == nil || !strings.Contains(err.Error(), "HEAPWIRE_PYROSCOPE_STALE") {
		t.Errorf("%v", err)
	}
}

// oldServer knows /ingest only.
type oldServer struct {
	*httptest.Server
	asked    []string
	queries  []string
	headers  []http.Header
	profiles []*profile.Profile
	config   string
	fail     http.HandlerFunc
}

func startOld(t *testing.T) *oldServer {
	s := &oldServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked = append(s.asked, r.URL.Path)
		if r.URL.Path != "/base/ingest" {
			http.NotFound(w, r)
			return
		}
		if s.fail != nil {
			s.fail(w, r)
			return
		}
		file, _, err := r.FormFile("profile")
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		gz, err := gzip.NewReader(file)
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		p, err := profile.Parse(gz)
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		if f, _, err := r.FormFile("sample_type_config"); err == nil {
			text, _ := io.ReadAll(f)
			s.config = string(text)
		}
		s.profiles, s.queries, s.headers = append(s.profiles, p), append(s.queries, r.URL.Query().Get("name")), append(s.headers, r.Header)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestAServerBeforePushGetsIngest(t *testing.T) {
	srv := startOld(t)
	s := open(t, pyroscope.Config{Address: srv.URL + "/base/", TenantID: "team", AuthToken: "t0ken", Headers: map[string]string{"X-Team": "rl"}})
	for seq := uint64(1); seq <= 2; seq++ {
		if err := s.Export(t.Context(), counted(seq, "interval", map[string][2]int64{"f": {100, int64(seq) * 1000}})); err != nil {
			t.Fatal(err)
		}
	}
	if want := "/base/push.v1.PusherService/Push /base/ingest /base/ingest"; strings.Join(srv.asked, " ") != want {
		t.Errorf("asked %v, want %v", srv.asked, want)
	}
	if got := byStack(srv.profiles, "inuse_space")["f (f.py)"]; got != 200 {
		t.Errorf("live %d", got)
	}
	if got := byStack(srv.profiles, "alloc_space"); len(got) > 0 || s.Counts()[pyroscope.CountAllocOld] != 2 {
		t.Errorf("an old server adds up what was ever allocated: %v, counts %v", got, s.Counts())
	}
	if want := "trainer{hostname=node7,local_rank=1,memory_kind=host,rank=3,view=live,world_size=8}"; srv.queries[0] != want {
		t.Errorf("name %q, want %q", srv.queries[0], want)
	}
	if h := srv.headers[0]; h.Get("Authorization") != "Bearer t0ken" || h.Get("X-Scope-OrgID") != "team" || h.Get("X-Team") != "rl" {
		t.Errorf("headers %v", h)
	}
	if !strings.Contains(srv.config, `"inuse_space":{"units":"bytes","aggregation":"average"`) {
		t.Errorf("config %s", srv.config)
	}
}

func TestAnswersOfIngest(t *testing.T) {
	for _, c := range []struct {
		name      string
		fail      http.HandlerFunc
		permanent bool
		delay     time.Duration
	}{
		{"refused", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnprocessableEntity) }, true, 0},
		{"too many", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			http.Error(w, "no", http.StatusTooManyRequests)
		}, false, 7 * time.Second},
		{"answer lost", func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		}, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := startOld(t)
			srv.fail = c.fail
			err := open(t, pyroscope.Config{Address: srv.URL + "/base"}).Export(t.Context(), item(profiletest.Heap()))
			var later *sink.RetryAfterError
			errors.As(err, &later)
			if err == nil || sink.IsPermanent(err) != c.permanent || (later != nil) != (c.delay > 0) || later != nil && later.Delay != c.delay {
				t.Errorf("error %v", err)
			}
		})
	}
	srv := startOld(t)
	s := open(t, pyroscope.Config{Address: srv.URL + "/base"})
	ctx, cancel := context.WithCancel(t.Context())
	if err := s.Export(ctx, item(profiletest.Heap())); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := s.Export(ctx, item(profiletest.Heap())); !errors.Is(err, context.Canceled) || sink.IsPermanent(err) {
		t.Errorf("with its context ended: %v", err)
	}
}
