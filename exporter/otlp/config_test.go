// SPDX-License-Identifier: Apache-2.0

package otlp_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	convert "github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/convert/otlp/profiletest"
	"github.com/heapwire/heapwire/exporter/otlp"
)

func env(pairs ...string) func(string) string {
	vars := map[string]string{}
	for _, p := range pairs {
		k, v, _ := strings.Cut(p, "=")
		vars[k] = v
	}
	return func(k string) string { return vars[k] }
}

func TestEndpointFromEnv(t *testing.T) {
	f := func(want string, pairs ...string) {
		t.Helper()
		cfg, enabled, err := otlp.ConfigFromEnv(env(pairs...))
		if err != nil || !enabled || cfg.Endpoint != want {
			t.Errorf("%q: endpoint %q (enabled %v, error %v), want %q", pairs, cfg.Endpoint, enabled, err, want)
		}
	}
	const general, specific = "OTEL_EXPORTER_OTLP_ENDPOINT=", "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT="
	f("http://c:4318/v1development/profiles", general+"http://c:4318")
	f("http://c:4318/v1development/profiles", general+"http://c:4318/")
	f("https://c/otlp/v1development/profiles", general+"https://c/otlp/")
	f("http://c:4318", specific+"http://c:4318")
	f("http://c:4318/v1/profiles", specific+"http://c:4318/v1/profiles")
	f("http://p/x", specific+"http://p/x", general+"http://c:4318")
	f("http://c:4318/v1development/profiles", specific+"  ", general+"http://c:4318")
	f("http://c:4317", general+"http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc")
	f("c:4317", general+"c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc")
}

func TestEnabledFromEnv(t *testing.T) {
	f := func(want bool, pairs ...string) {
		t.Helper()
		if _, enabled, err := otlp.ConfigFromEnv(env(pairs...)); enabled != want || err != nil {
			t.Errorf("%q: enabled %v, error %v", pairs, enabled, err)
		}
	}
	f(false)
	f(false, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc")
	f(true, "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318")
	f(false, "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", "OTEL_SDK_DISABLED=TRUE")
	f(true, "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", "OTEL_SDK_DISABLED=1") // only "true" counts, says the specification
	f(false, "OTEL_EXPORTER_OTLP_ENDPOINT=nonsense", "OTEL_SDK_DISABLED=true")
}

func TestSettingsFromEnv(t *testing.T) {
	const p = "OTEL_EXPORTER_OTLP_"
	cfg, _, err := otlp.ConfigFromEnv(env(p + "ENDPOINT=http://c:4318"))
	if err != nil || cfg.Protocol != otlp.HTTPProtobuf || cfg.Timeout != 10*time.Second || cfg.Compression != "none" || cfg.Encoding != convert.Reference || cfg.Insecure {
		t.Errorf("defaults: %+v, %v", cfg, err)
	}
	cfg, _, err = otlp.ConfigFromEnv(env(
		p+"ENDPOINT=http://c:4318", p+"PROFILES_PROTOCOL=http/json", p+"PROTOCOL=grpc", p+"TIMEOUT=1", p+"PROFILES_TIMEOUT=2500",
		p+"HEADERS=a=1", p+"PROFILES_HEADERS=Authorization=Bearer%20x%2Cy%3D, b = 2 ,", p+"COMPRESSION=gzip", p+"INSECURE=true",
		p+"CERTIFICATE=ca.pem", p+"PROFILES_CLIENT_CERTIFICATE=c.pem", p+"CLIENT_KEY=k.pem", "HEAPWIRE_OTLP_ATTRIBUTES_ENCODING=inline"))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Protocol != otlp.HTTPJSON || cfg.Timeout != 2500*time.Millisecond || cfg.Compression != "gzip" || !cfg.Insecure || cfg.Encoding != convert.Inline ||
		cfg.Certificate != "ca.pem" || cfg.ClientCertificate != "c.pem" || cfg.ClientKey != "k.pem" {
		t.Errorf("%+v", cfg)
	}
	if want := map[string]string{"Authorization": "Bearer x,y=", "b": "2"}; !maps.Equal(cfg.Headers, want) {
		t.Errorf("headers %q, want %q", cfg.Headers, want)
	}
}

func TestFaultsInEnvNameTheVariable(t *testing.T) {
	f := func(wants ...string) {
		t.Helper()
		pairs := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318"}
		pairs = append(pairs, wants...)
		_, _, err := otlp.ConfigFromEnv(env(pairs...))
		if err == nil {
			t.Errorf("%q: no error", wants)
			return
		}
		for _, w := range wants {
			name, _, _ := strings.Cut(w, "=")
			if !strings.Contains(err.Error(), name) {
				t.Errorf("%q: %v", w, err)
			}
		}
	}
	f("OTEL_EXPORTER_OTLP_ENDPOINT=localhost:4318")
	f("OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT=/v1/profiles")
	f("OTEL_EXPORTER_OTLP_PROTOCOL=http")
	f("OTEL_EXPORTER_OTLP_TIMEOUT=10s")
	f("OTEL_EXPORTER_OTLP_PROFILES_TIMEOUT=0")
	f("OTEL_EXPORTER_OTLP_COMPRESSION=zstd")
	f("OTEL_EXPORTER_OTLP_INSECURE=yes")
	f("OTEL_EXPORTER_OTLP_HEADERS=novalue")
	f("HEAPWIRE_OTLP_ATTRIBUTES_ENCODING=x")
	f("OTEL_EXPORTER_OTLP_TIMEOUT=x", "OTEL_EXPORTER_OTLP_COMPRESSION=y") // all of them at once
	_, _, err := otlp.ConfigFromEnv(env("OTEL_EXPORTER_OTLP_ENDPOINT=http://c", "OTEL_EXPORTER_OTLP_HEADERS=Authorization=s3cret%zz"))
	if err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a header's value is in the message: %v", err)
	}
}

func TestNewRefusesABadConfig(t *testing.T) {
	for name, cfg := range map[string]otlp.Config{
		"no endpoint":        {},
		"no scheme":          {Endpoint: "localhost:4318"},
		"protocol":           {Endpoint: "http://c", Protocol: "udp"},
		"compression":        {Endpoint: "http://c", Compression: "lzma"},
		"certificate":        {Endpoint: "https://c", Certificate: "no-such-file"},
		"certificate is not": {Endpoint: "https://c", Certificate: "config_test.go"},
		"client certificate": {Endpoint: "https://c", ClientCertificate: "no-such-file", ClientKey: "no-such-file"},
		"grpc endpoint":      {Endpoint: "ftp://c", Protocol: otlp.GRPC},
	} {
		if _, err := otlp.New(cfg); err == nil || !strings.HasPrefix(err.Error(), "otlp: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// certificate makes a self-signed certificate for 127.0.0.1 and writes it and its key.
func certificate(t *testing.T, name string) (certFile, keyFile string, pair tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	for file, data := range map[string][]byte{certFile: certPEM, keyFile: keyPEM} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if pair, err = tls.X509KeyPair(certPEM, keyPEM); err != nil {
		t.Fatal(err)
	}
	return certFile, keyFile, pair
}

func TestTLSWithClientCertificate(t *testing.T) {
	serverCert, _, serverPair := certificate(t, "server")
	clientCert, clientKey, _ := certificate(t, "client")
	pool := x509.NewCertPool()
	client, err := os.ReadFile(clientCert)
	if err != nil {
		t.Fatal(err)
	}
	pool.AppendCertsFromPEM(client)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(ok))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{serverPair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()

	good := otlp.Config{Endpoint: srv.URL, Certificate: serverCert, ClientCertificate: clientCert, ClientKey: clientKey}
	if err := open(t, good).Export(t.Context(), item(profiletest.Heap())); err != nil {
		t.Errorf("with both certificates: %v", err)
	}
	for name, cfg := range map[string]otlp.Config{
		"unknown server": {Endpoint: srv.URL, ClientCertificate: clientCert, ClientKey: clientKey},
		"no client":      {Endpoint: srv.URL, Certificate: serverCert},
	} {
		if err := open(t, cfg).Export(t.Context(), item(profiletest.Heap())); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
