// SPDX-License-Identifier: Apache-2.0

package pyroscope

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
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

// Config is where and how to push. Zero values are the defaults.
type Config struct {
	// Address is the server's base URL, such as http://pyroscope:4040.
	Address string

	// BasicAuthUser and BasicAuthPassword, or AuthToken as a bearer token, identify us; TenantID is the X-Scope-OrgID of
	// a server with tenants.
	BasicAuthUser, BasicAuthPassword string
	AuthToken                        string
	TenantID                         string

	// Timeout bounds one push.
	Timeout time.Duration

	// MaxBytes and MaxSamples are the largest profile the server takes, uncompressed.
	MaxBytes, MaxSamples int

	// Version is heapwire's own, for the User-Agent.
	Version string

	// Transport is used instead of one of our own, which honours HTTP_PROXY and its kin.
	Transport http.RoundTripper
}

// ConfigFromEnv reads PYROSCOPE_SERVER_ADDRESS, which enables the sink, and PYROSCOPE_BASIC_AUTH_USER,
// PYROSCOPE_BASIC_AUTH_PASSWORD, PYROSCOPE_AUTH_TOKEN, PYROSCOPE_TENANT_ID, as Pyroscope's own clients name them.
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
	if cfg.AuthToken != "" && (cfg.BasicAuthUser != "" || cfg.BasicAuthPassword != "") {
		return cfg, true, errors.New("PYROSCOPE_AUTH_TOKEN and PYROSCOPE_BASIC_AUTH_* are both set: only one can be sent")
	}
	return cfg, true, nil
}

const pushPath = "push.v1.PusherService/Push"

func pushURL(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("want an http or https URL with a host") // without the value: it may hold a password
	}
	return u.JoinPath(pushPath), nil
}
