// SPDX-License-Identifier: Apache-2.0

package pyroscope

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

const (
	// DefaultTimeout bounds one push.
	DefaultTimeout = 10 * time.Second

	// DefaultMaxBytes is the size above which a profile is split. The server's burst limit is 2 MiB of uncompressed
	// profile by default, and what is above it is refused for ever; the rest is for what it counts in addition.
	DefaultMaxBytes = 2<<20 - 64<<10

	// DefaultMaxSamples is the server's max_profile_stacktrace_samples.
	DefaultMaxSamples = 16000
)

// The server takes profiles from MaxAge ago to MaxAhead from now: reject-older-than and reject-newer-than by default.
const (
	MaxAge   = time.Hour
	MaxAhead = 10 * time.Minute
)

// Stale says what becomes of a profile that is too old for the server. One from the future, as a clock that was set back
// leaves it, always gets the present time: it would be refused until that time has come.
type Stale string

const (
	// DropStale gives it up. The other sinks have it.
	DropStale Stale = "drop"
	// RestampStale gives it the present time: better late than never, but sums over a time that has many are too large.
	RestampStale Stale = "restamp"
)

// EnvStale names the policy for stale profiles; no variable of Pyroscope's own does.
const EnvStale = "HEAPWIRE_PYROSCOPE_STALE"

// Config is where and how to push. Zero values are the defaults.
type Config struct {
	// Address is the server's base URL, such as http://pyroscope:4040.
	Address string

	// BasicAuthUser and BasicAuthPassword, or AuthToken as a bearer token, identify us; TenantID is the X-Scope-OrgID of
	// a server with tenants.
	BasicAuthUser, BasicAuthPassword string
	AuthToken                        string
	TenantID                         string

	// Headers are sent with each request.
	Headers map[string]string

	// Stale says what becomes of a profile that is older than MaxAge, which the server refuses.
	Stale Stale

	// StaleSetting is what Stale is called where it is set, for messages; EnvStale.
	StaleSetting string

	// Timeout bounds one push.
	Timeout time.Duration

	// MaxBytes and MaxSamples are the largest profile the server takes, uncompressed.
	MaxBytes, MaxSamples int

	// Version is heapwire's own, for the User-Agent.
	Version string

	// Logger gets what is odd about the server; nil discards it.
	Logger *slog.Logger

	// Now is the clock; nil: time.Now.
	Now func() time.Time

	// Transport is used instead of one of our own, which honours HTTP_PROXY and its kin.
	Transport http.RoundTripper
}

// ConfigFromEnv reads PYROSCOPE_SERVER_ADDRESS, which enables the sink, and PYROSCOPE_BASIC_AUTH_USER,
// PYROSCOPE_BASIC_AUTH_PASSWORD, PYROSCOPE_AUTH_TOKEN, PYROSCOPE_TENANT_ID, PYROSCOPE_HTTP_HEADERS (a JSON object), as
// Pyroscope's own clients name them, and HEAPWIRE_PYROSCOPE_STALE.
func ConfigFromEnv(getenv func(string) string) (cfg Config, enabled bool, err error) {
	get := func(name string) string { return strings.TrimSpace(getenv(name)) }
	cfg = Config{
		Address:           get("PYROSCOPE_SERVER_ADDRESS"),
		BasicAuthUser:     get("PYROSCOPE_BASIC_AUTH_USER"),
		BasicAuthPassword: get("PYROSCOPE_BASIC_AUTH_PASSWORD"),
		AuthToken:         get("PYROSCOPE_AUTH_TOKEN"),
		TenantID:          get("PYROSCOPE_TENANT_ID"),
	}
	if cfg.Address == "" {
		return Config{}, false, nil
	}
	if _, err := pushURL(cfg.Address); err != nil {
		return cfg, true, fmt.Errorf("PYROSCOPE_SERVER_ADDRESS: %w", err)
	}
	if text := get("PYROSCOPE_HTTP_HEADERS"); text != "" {
		if cfg.Headers, err = parseHeaders(text); err != nil {
			return cfg, true, fmt.Errorf("PYROSCOPE_HTTP_HEADERS: %w", err)
		}
	}
	switch cfg.Stale = Stale(get(EnvStale)); cfg.Stale {
	case "", DropStale, RestampStale:
	default:
		return cfg, true, fmt.Errorf("%s=%s: want %s or %s", EnvStale, cfg.Stale, DropStale, RestampStale)
	}
	if cfg.AuthToken != "" && (cfg.BasicAuthUser != "" || cfg.BasicAuthPassword != "") {
		return cfg, true, errors.New("PYROSCOPE_AUTH_TOKEN and PYROSCOPE_BASIC_AUTH_* are both set: only one can be sent")
	}
	return cfg, true, nil
}

// parseHeaders reads {"name": "value"}. Errors leave the values out: they hold secrets.
func parseHeaders(text string) (map[string]string, error) {
	var headers map[string]string
	if err := json.Unmarshal([]byte(text), &headers); err != nil {
		return nil, errors.New("want a JSON object of strings")
	}
	for k, v := range headers {
		if !httpguts.ValidHeaderFieldName(k) || !httpguts.ValidHeaderFieldValue(v) {
			return nil, fmt.Errorf("%q is no header", k)
		}
	}
	return headers, nil
}

const pushPath = "push.v1.PusherService/Push"

func pushURL(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("want an http or https URL with a host") // without the value: it may hold a password
	}
	return u.JoinPath(pushPath), nil
}
