// SPDX-License-Identifier: Apache-2.0

package pyroscope

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/stack"
)

// liveBytes is the profile type of live memory, host's and devices'.
const liveBytes = metricName + ":inuse_space:bytes:space:bytes"

// maxAnswer caps what is read of an answer.
const maxAnswer = 1 << 30

// Query is a question for the live memory that a server has.
type Query struct {
	// Labels select the series, all of them exactly. memory_kind is host and view live if they are not there.
	Labels   map[string]string
	From, To time.Time
}

// Found is what a server has.
type Found struct {
	// Profile is the sum over all snapshots and series; it has inuse_space only.
	Profile *profile.Profile
	// Snapshots is how many it is the sum of.
	Snapshots int
}

// ErrNothingFound is what Select returns if no series or no time fits.
var ErrNothingFound = errors.New("the server has no such profiles")

// Selector reads what a server is asked: pyroscope://host:port/?service_name=S&service_version=V&from=T&to=T. Every parameter
// but from and to is a label. Times are RFC 3339, seconds or milliseconds since 1970, now, or now-1h; from is now-1h and to is
// now if they are not there. pyroscope+https is TLS. A path is that of the server behind a proxy.
func Selector(text string, now time.Time) (address string, q Query, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", q, errors.New("want pyroscope://host:port/?service_name=…&from=…&to=…")
	}
	switch u.Scheme {
	case "pyroscope":
		u.Scheme = "http"
	case "pyroscope+https":
		u.Scheme = "https"
	default:
		return "", q, fmt.Errorf("scheme %q: want pyroscope or pyroscope+https", u.Scheme)
	}
	if u.Host == "" {
		return "", q, errors.New("no host")
	}
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "", q, fmt.Errorf("parameters: %w", err)
	}
	u.RawQuery, u.Fragment = "", ""
	q = Query{Labels: map[string]string{}, From: now.Add(-time.Hour), To: now}
	for key, v := range values {
		if len(v) != 1 {
			return "", q, fmt.Errorf("%s is there %d times", key, len(v))
		}
		var err error
		switch key {
		case "from":
			q.From, err = moment(v[0], now)
		case "to":
			q.To, err = moment(v[0], now)
		default:
			if labelName(key) != key {
				err = errors.New("no label name")
			}
			q.Labels[key] = v[0]
		}
		if err != nil {
			return "", q, fmt.Errorf("%s=%s: %w", key, v[0], err)
		}
	}
	if len(q.Labels) == 0 {
		return "", q, errors.New("no label: want at least service_name")
	}
	if !q.From.Before(q.To) {
		return "", q, fmt.Errorf("from %s is not before to %s", q.From.Format(time.RFC3339), q.To.Format(time.RFC3339))
	}
	return u.String(), q, nil
}

func moment(text string, now time.Time) (time.Time, error) {
	if rest, ok := strings.CutPrefix(text, "now"); ok {
		if rest == "" {
			return now, nil
		}
		d, err := time.ParseDuration(rest)
		if err != nil || rest[0] != '-' && rest[0] != '+' {
			return now, errors.New("want now, or now and a duration: now-1h")
		}
		return now.Add(d), nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 {
		if n > 1e11 {
			return time.UnixMilli(n), nil
		}
		return time.Unix(n, 0), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, errors.New("want RFC 3339 (2026-11-29T18:00:00Z), seconds since 1970, or now-1h")
	}
	return t, nil
}

// selector is the question in the server's words.
func (q Query) selector() string {
	labels := map[string]string{"memory_kind": hostKind, "view": liveView}
	for k, v := range q.Labels {
		labels[k] = v
	}
	names := make([]string, 0, len(labels))
	for k := range labels {
		names = append(names, k)
	}
	slices.Sort(names)
	for i, k := range names {
		names[i] = k + "=" + strconv.Quote(labels[k])
	}
	return "{" + strings.Join(names, ",") + "}"
}

const (
	hostKind = "host"
	liveView = "live"
)

// Select asks the server for the sum of all snapshots, and for their number: it sums over time and series, and has no mean.
func Select(ctx context.Context, cfg Config, q Query) (*Found, error) {
	s, err := New(cfg)
	if err != nil {
		return nil, err
	}
	defer s.client.CloseIdleConnections()
	fail := func(err error) (*Found, error) {
		return nil, fmt.Errorf("asking %s for %s: %w", s.shown, q.selector(), err)
	}
	// The answer is a google.v1.Profile, which is a pprof profile field by field.
	body, err := s.ask(ctx, "SelectMergeProfile", "application/proto", selectRequest(q))
	if err != nil {
		return fail(err)
	}
	if len(body) == 0 {
		return fail(ErrNothingFound)
	}
	p, err := profile.ParseUncompressed(body)
	if err != nil {
		return fail(fmt.Errorf("the answer is no profile: %w", err))
	}
	if len(p.Sample) == 0 {
		return fail(ErrNothingFound)
	}
	mend(p)
	n, err := s.snapshots(ctx, q)
	if err != nil {
		return fail(err)
	}
	if n == 0 {
		return fail(ErrNothingFound)
	}
	return &Found{Profile: p, Snapshots: n}, nil
}

// snapshots counts the profiles by their distribution over time: each is one in it.
func (s *Sink) snapshots(ctx context.Context, q Query) (int, error) {
	step := max(q.To.Sub(q.From).Seconds()/100, 1)
	request, err := json.Marshal(map[string]any{
		"profile_typeID": liveBytes, "label_selector": q.selector(), "start": q.From.UnixMilli(), "end": q.To.UnixMilli(),
		"step": step, "query_type": "HEATMAP_QUERY_TYPE_INDIVIDUAL", "exemplar_type": "EXEMPLAR_TYPE_NONE",
	})
	if err != nil {
		return 0, err
	}
	body, err := s.ask(ctx, "SelectHeatmap", "application/json", request)
	if err != nil {
		return 0, err
	}
	var answer struct {
		Series []struct {
			Slots []struct {
				Counts []int `json:"counts"`
			} `json:"slots"`
		} `json:"series"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return 0, fmt.Errorf("the answer is no heatmap: %w", err)
	}
	n := 0
	for _, series := range answer.Series {
		for _, slot := range series.Slots {
			for _, c := range slot.Counts {
				n += c
			}
		}
	}
	return n, nil
}

// selectRequest encodes SelectMergeProfileRequest{profile_typeID, label_selector, start, end}.
func selectRequest(q Query) []byte {
	b := field(nil, 1, []byte(liveBytes))
	b = field(b, 2, []byte(q.selector()))
	b = binary.AppendUvarint(append(b, 3<<3), uint64(q.From.UnixMilli()))
	return binary.AppendUvarint(append(b, 4<<3), uint64(q.To.UnixMilli()))
}

func (s *Sink) ask(ctx context.Context, method, contentType string, request []byte) ([]byte, error) {
	u, err := url.Parse(s.base)
	if err != nil {
		return nil, err
	}
	u.Path = path.Join("/", u.Path, "querier.v1.QuerierService", method)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(request))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Connect-Protocol-Version", "1")
	for k, v := range s.headers() {
		req.Header.Set(k, v)
	}
	if s.cfg.TenantID != "" {
		req.Header.Set("X-Scope-OrgID", s.cfg.TenantID)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		if u := (*url.Error)(nil); errors.As(err, &u) {
			err = u.Err
		}
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("%s: reading the answer: %w", method, err)
	}
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %s: %s", method, resp.Status, message(mediaType, body))
	case len(body) > maxAnswer:
		return nil, fmt.Errorf("%s: byte %d: a larger answer is not read; ask for less time or fewer series", method, maxAnswer)
	case mediaType != contentType:
		return nil, fmt.Errorf("%s: the answer is not Pyroscope's: content type %q, %s", method, resp.Header.Get("Content-Type"), quote(body))
	}
	return body, nil
}

// mend takes back what pushing did to names (distinctNames), and gives the profile what a server may have lost of it: which
// frames are Python's, and the sampling interval.
func mend(p *profile.Profile) {
	python := &profile.Mapping{File: stack.PythonMapping, HasFunctions: true, HasFilenames: true, HasLineNumbers: true}
	for _, m := range p.Mapping {
		python.ID = max(python.ID, m.ID)
	}
	python.ID++
	for _, f := range p.Function {
		if at := strings.LastIndex(f.Name, " ("); at > 0 && strings.HasSuffix(f.Name, ")") {
			if short := f.Name[at+2 : len(f.Name)-1]; f.Filename == short || strings.HasSuffix(f.Filename, "/"+short) {
				f.Name = f.Name[:at]
			}
		}
	}
	used := false
	for _, l := range p.Location {
		if stack.IsPython(l) || len(l.Line) == 0 || l.Line[0].Function == nil {
			continue
		}
		if name := l.Line[0].Function.Filename; strings.HasSuffix(name, ".py") || strings.HasPrefix(name, "<frozen ") {
			l.Mapping, used = python, true
		}
	}
	if used {
		p.Mapping = append(p.Mapping, python)
	}
	const usual = 512 << 10 // of jemalloc and of the shim
	if p.Period <= 1 || p.PeriodType == nil || p.PeriodType.Type != "space" {
		p.Period, p.PeriodType = usual, &profile.ValueType{Type: "space", Unit: "bytes"}
	}
}
