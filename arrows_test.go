// SPDX-License-Identifier: Apache-2.0

// Package heapwire holds no code: its test keeps the arrows between the rooms of the house pointing one way.
package heapwire

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const (
	module   = "github.com/heapwire/heapwire/"
	pprofile = "go.opentelemetry.io/collector/pdata/pprofile"
)

// otelcol → exporter → convert; only convert/otlp builds OTLP profiles, its hosts carry them.
func TestImportsFollowTheArrows(t *testing.T) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("listing packages: %v\n%s", err, stderr.Bytes())
	}
	seen := 0
	for dec := json.NewDecoder(bytes.NewReader(out)); ; seen++ {
		var pkg struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&pkg); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("reading the list of packages: %v", err)
		}
		from := strings.TrimPrefix(pkg.ImportPath, module)
		for _, imported := range pkg.Imports {
			if why := forbidden(from, strings.TrimPrefix(imported, module)); why != "" {
				t.Errorf("%s imports %s: %s", from, imported, why)
			}
		}
	}
	if seen == 0 {
		t.Error("no packages listed")
	}
}

func TestForbiddenImportsAreFound(t *testing.T) {
	for _, c := range []struct {
		from, to string
		ok       bool
	}{
		{"convert/jemalloc", "exporter/spool", false},
		{"convert", "otelcol/heapwirereceiver", false},
		{"convert/otlp", "net/http", false},
		{"exporter", "otelcol/heapwirereceiver", false},
		{"exporter", pprofile, false},
		{"convert/jemalloc", pprofile, false},
		{"convert/otlp", pprofile, true},
		{"exporter/otlp", pprofile + "/pprofileotlp", true},
		{"otelcol/heapwirereceiver", "exporter", true},
		{"exporter", "convert", true},
		{"convertible", "exporter", true},
	} {
		if got := forbidden(c.from, c.to); (got == "") != c.ok {
			t.Errorf("%s imports %s: got %q, want allowed %v", c.from, c.to, got, c.ok)
		}
	}
}

// forbidden says why a package may not import another one; empty if it may. Paths of this module come without its name.
func forbidden(from, imported string) string {
	switch {
	case within(from, "convert") && (within(imported, "exporter") || within(imported, "otelcol")):
		return "convert turns bytes into profiles and knows nothing of who ships or hosts them"
	case within(from, "convert") && imported == "net/http":
		return "convert uses no network"
	case within(from, "exporter") && within(imported, "otelcol"):
		return "the collector hosts the exporter, not the other way round"
	case within(imported, pprofile) && !carriesProfiles(from):
		return "only convert/otlp builds OTLP profiles; exporter/otlp and otelcol carry them"
	}
	return ""
}

func carriesProfiles(pkg string) bool {
	for _, room := range []string{"convert/otlp", "exporter/otlp", "otelcol"} {
		if within(pkg, room) {
			return true
		}
	}
	return false
}

func within(pkg, room string) bool {
	return pkg == room || strings.HasPrefix(pkg, room+"/")
}
