// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"context"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/heapwire/heapwire/shim/test/pythons"
)

// The demo by itself demands that the leak is in the table and that the receiver got something.
func TestTheDemoNamesTheLeak(t *testing.T) {
	t.Parallel()
	py := onePython(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*jobLimit)
	defer cancel()
	out := filepath.Join(t.TempDir(), "out")
	program := filepath.Join(here, "leak_basic/leak_basic.py")
	cmd := exec.CommandContext(ctx, "go", "run", "./demo",
		"-heapwire", heapwire, "-python", py.Path, "-program", program, "-out", out, "-interval", "1s", "-rounds", "10")
	cmd.Env = pythons.CleanEnv()
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for site, at := range markedPlaces(t, program) {
		line := filepath.Base(program) + ":" + strconv.FormatInt(at.line, 10)
		if site == "pages" {
			for shown := range strings.Lines(string(text)) {
				if strings.HasPrefix(shown, "heapwire: ") && strings.Contains(shown, line) {
					t.Errorf("the healthy cache is among the growers: %s", shown)
				}
			}
		} else if !(strings.Contains(string(text), at.bare()) && strings.Contains(string(text), line)) {
			t.Errorf("%s at %s is not shown:\n%s", at.bare(), line, text)
		}
	}
	for _, want := range []string{"Flame graph: " + out, "MiB live"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not shown:\n%s", want, text)
		}
	}
}
