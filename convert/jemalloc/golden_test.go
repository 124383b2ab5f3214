// SPDX-License-Identifier: Apache-2.0

package jemalloc_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/jemalloc"
)

var update = flag.Bool("update", false, "update the golden files")

// Each testdata/x.heap has x.heap.string, its readable rendering and its warnings. Written as pprof and read again, the
// profile has to render the same.
func TestGoldens(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.heap"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no goldens: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			in, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			dump, err := jemalloc.Parse(bytes.NewReader(in), jemalloc.Options{Name: filepath.Base(file)})
			if err != nil {
				t.Fatal(err)
			}
			warnings := strings.Join(append(dump.Report.Warnings(), ""), "\n")
			got := render(dump.Profile) + giants(dump) + warnings
			if *update {
				if err := os.WriteFile(file+".string", []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file + ".string")
			if err != nil {
				t.Fatalf("%v (make it with -update)", err)
			}
			if got != string(want) {
				t.Errorf("got\n%swant\n%s", got, want)
			}
			var out bytes.Buffer
			if err := dump.Profile.Write(&out); err != nil {
				t.Fatal(err)
			}
			again, err := profile.Parse(&out)
			if err != nil {
				t.Fatal(err)
			}
			if got := render(again) + giants(dump) + warnings; got != string(want) {
				t.Errorf("written and read again: got\n%swant\n%s", got, want)
			}
		})
	}
}
