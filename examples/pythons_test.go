// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"fmt"
	"strings"
	"testing"

	"github.com/heapwire/heapwire/shim/test/pythons"
)

type python = pythons.Python

// findPythons returns the interpreters for which keep holds; a machine without any is a failure.
func findPythons(t *testing.T, keep func(python) bool) []python {
	t.Helper()
	all, err := pythons.Find()
	if err != nil {
		t.Fatalf("finding interpreters: %v", err)
	}
	if len(all) == 0 {
		t.Fatal("no Python found in PATH, /usr/bin, $PYENV_ROOT/versions or $HEAPWIRE_PYTHONS")
	}
	var kept []python
	for _, p := range all {
		if keep(p) {
			kept = append(kept, p)
		}
	}
	return kept
}

// onePython is the newest supported interpreter, for tests that are not about versions.
func onePython(t *testing.T) python {
	t.Helper()
	found := findPythons(t, python.Supported)
	if len(found) == 0 {
		t.Skip("no CPython between 3.8 and 3.15 found")
	}
	return found[len(found)-1]
}

func TestPythonsOfThisMachine(t *testing.T) {
	var supported, others []string
	for _, p := range findPythons(t, func(python) bool { return true }) {
		name := fmt.Sprintf("%s (%s)", p, p.Path)
		if p.Supported() {
			supported = append(supported, name)
		} else {
			others = append(others, name)
		}
	}
	t.Logf("with Python frames: %s", strings.Join(supported, ", "))
	t.Logf("native frames only: %s", strings.Join(others, ", "))
	if len(supported) == 0 {
		t.Error("no CPython between 3.8 and 3.15 found: nothing can be shown")
	}
}
