// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	convert "github.com/heapwire/heapwire/convert/otlp"
)

// Protocols, as OTEL_EXPORTER_OTLP_PROTOCOL names them.
const (
	GRPC         = "grpc"
	HTTPProtobuf = "http/protobuf"
	HTTPJSON     = "http/json"
)

// DefaultTimeout is the standard's default for one export.
const DefaultTimeout = 10 * time.Second

// EnvEncoding switches how attribute strings are written: "reference", the default, or "inline", which Pyroscope needs.
// No standard variable covers it.
const EnvEncoding = "HEAPWIRE_OTLP_ATTRIBUTES_ENCODING"

// Config is where and how to send. Zero values are the standard's defaults.
type Config struct {
	// Endpoint is an http or https URL. Over HTTP it is used as it is; over gRPC its scheme says whether to use TLS, and
	// "host:port" without one is allowed.
	Endpoint string

	// Protocol is GRPC, HTTPProtobuf (the default) or HTTPJSON.
	Protocol string

	// Headers are sent with each request, as metadata over gRPC.
	Headers map[string]string

	// Timeout bounds one export.
	Timeout time.Duration

	// Compression is "gzip" or "none" (the default).
	Compression string

	// Insecure turns TLS off for a gRPC endpoint without a scheme.
	Insecure bool

	// Certificate is a file with the authorities to trust; ClientCertificate and ClientKey identify us. All PEM.
	Certificate, ClientCertificate, ClientKey string

	// Encoding is how strings of resource attributes are written.
	Encoding convert.Encoding

	// MaxBytes is the largest request, before compression; the standard's 64 MiB.
	MaxBytes int

	// Version is heapwire's own, for the User-Agent and the instrumentation scope.
	Version string

	// Logger gets what a receiver says about a request that it accepted; nil discards it.
	Logger *slog.Logger
}

// Signal is what a sink sends.
type Signal string

const (
	Profiles Signal = "PROFILES"
	Logs     Signal = "LOGS"
	Metrics  Signal = "METRICS"
)

// ConfigFromEnv is ConfigFor(Profiles, getenv).
func ConfigFromEnv(getenv func(string) string) (cfg Config, enabled bool, err error) {
	return ConfigFor(Profiles, getenv)
}

// ConfigFor reads the standard variables through getenv. The sink is enabled when an endpoint is set, OTEL_SDK_DISABLED is
// not "true" and OTEL_<SIGNAL>_EXPORTER names nothing but otlp. A variable for the signal (OTEL_EXPORTER_OTLP_LOGS_X)
// beats the general one (OTEL_EXPORTER_OTLP_X); an empty one counts as unset. All faults are reported, each with its
// variable's name.
func ConfigFor(signal Signal, getenv func(string) string) (cfg Config, enabled bool, err error) {
	if strings.EqualFold(strings.TrimSpace(getenv("OTEL_SDK_DISABLED")), "true") {
		return Config{}, false, nil
	}
	if named := strings.TrimSpace(getenv("OTEL_" + string(signal) + "_EXPORTER")); named != "" {
		all := strings.Split(named, ",")
		if !slices.ContainsFunc(all, func(one string) bool { return strings.TrimSpace(one) == "otlp" }) {
			return Config{}, false, nil
		}
	}
	e := env{signal: signal, getenv: getenv}
	endpoint, name := e.get("ENDPOINT")
	if endpoint == "" {
		return Config{}, false, nil
	}
	cfg = Config{Endpoint: endpoint, Timeout: DefaultTimeout, Protocol: HTTPProtobuf, Compression: "none"}

	if v, name := e.get("PROTOCOL"); v != "" {
		if !slices.Contains([]string{GRPC, HTTPProtobuf, HTTPJSON}, v) {
			e.fail(name, v, fmt.Errorf("want %s, %s or %s", GRPC, HTTPProtobuf, HTTPJSON))
		}
		cfg.Protocol = v
	}
	general := name == prefix+"ENDPOINT"
	switch {
	case cfg.Protocol == GRPC:
		if _, _, err := grpcTarget(endpoint, false); err != nil {
			e.fail(name, endpoint, err)
		}
	default:
		u, err := httpURL(endpoint)
		if err != nil {
			e.fail(name, endpoint, err)
		} else if general {
			cfg.Endpoint = u.JoinPath(wires[signal].path).String()
		}
	}
	if v, name := e.get("HEADERS"); v != "" {
		h, err := parseHeaders(v)
		if err != nil {
			e.fail(name, "", err) // the value holds secrets
		}
		cfg.Headers = h
	}
	if v, name := e.get("TIMEOUT"); v != "" {
		ms, err := strconv.ParseInt(v, 10, 32)
		if err != nil || ms <= 0 {
			e.fail(name, v, errors.New("want a positive number of milliseconds"))
		} else {
			cfg.Timeout = time.Duration(ms) * time.Millisecond
		}
	}
	if v, name := e.get("COMPRESSION"); v != "" {
		if v != "gzip" && v != "none" {
			e.fail(name, v, errors.New("want gzip or none"))
		}
		cfg.Compression = v
	}
	if v, name := e.get("INSECURE"); v != "" {
		switch strings.ToLower(v) {
		case "true":
			cfg.Insecure = true
		case "false":
		default:
			e.fail(name, v, errors.New("want true or false"))
		}
	}
	cfg.Certificate, _ = e.get("CERTIFICATE")
	cfg.ClientCertificate, _ = e.get("CLIENT_CERTIFICATE")
	cfg.ClientKey, _ = e.get("CLIENT_KEY")
	if cfg.Encoding, err = convert.ParseEncoding(getenv(EnvEncoding)); err != nil {
		e.errs = append(e.errs, fmt.Errorf("%s: %w", EnvEncoding, err))
	}
	return cfg, true, errors.Join(e.errs...)
}

const prefix = "OTEL_EXPORTER_OTLP_"

type env struct {
	signal Signal
	getenv func(string) string
	errs   []error
}

// get gives the value of a setting and the name of the variable it is from.
func (e *env) get(setting string) (value, name string) {
	for _, name := range []string{prefix + string(e.signal) + "_" + setting, prefix + setting} {
		if v := strings.TrimSpace(e.getenv(name)); v != "" {
			return v, name
		}
	}
	return "", ""
}

func (e *env) fail(name, value string, err error) {
	if value != "" {
		name += "=" + value
	}
	e.errs = append(e.errs, fmt.Errorf("%s: %w", name, err))
}

func httpURL(endpoint string) (*url.URL, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, errors.New("want an http or https URL")
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("want an http or https URL with a host")
	}
	if u.Path == "" {
		u.Path = "/"
	}
	return u, nil
}

// grpcTarget gives the host and port to dial and whether to do so without TLS: a scheme decides, then insecure.
func grpcTarget(endpoint string, insecure bool) (target string, plain bool, err error) {
	if !strings.Contains(endpoint, "://") {
		if strings.ContainsAny(endpoint, "/ ") {
			return "", false, errors.New("want host:port or an http or https URL")
		}
		return endpoint, insecure, nil
	}
	u, err := httpURL(endpoint)
	if err != nil {
		return "", false, err
	}
	target = u.Host
	if u.Port() == "" {
		target = u.Host + map[string]string{"http": ":80", "https": ":443"}[u.Scheme]
	}
	return target, u.Scheme == "http", nil
}

// GRPCTarget gives the host and port to dial, and whether to do so without TLS.
func (cfg Config) GRPCTarget() (target string, plain bool, err error) {
	return grpcTarget(cfg.Endpoint, cfg.Insecure)
}

// parseHeaders reads "k1=v1,k2=v2" with percent-encoded values. Errors leave the values out: they hold secrets.
func parseHeaders(s string) (map[string]string, error) {
	headers := map[string]string{}
	for member := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(member) == "" {
			continue
		}
		k, v, ok := strings.Cut(member, "=")
		k = strings.TrimSpace(k)
		if !ok || !httpguts.ValidHeaderFieldName(k) {
			return nil, errors.New("want name=value pairs separated by commas")
		}
		value, err := url.PathUnescape(strings.TrimSpace(v))
		if err != nil || !httpguts.ValidHeaderFieldValue(value) {
			return nil, fmt.Errorf("the value of %s is no percent-encoded header value", k)
		}
		headers[k] = value
	}
	return headers, nil
}

func (cfg Config) headerNames() []string { return slices.Sorted(maps.Keys(cfg.Headers)) }
