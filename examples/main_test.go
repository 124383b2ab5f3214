// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Absolute paths of what is tested and of this folder.
var heapwire, shim, here string

func TestMain(m *testing.M) {
	wd, err := filepath.Abs(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, "finding the examples:", err)
		os.Exit(1)
	}
	here = wd
	bin := filepath.Join(filepath.Dir(here), "bin")
	heapwire = filepath.Join(bin, "heapwire")
	shim = filepath.Join(bin, "libheapwire.so")
	for _, built := range []string{heapwire, shim} {
		if _, err := os.Stat(built); err != nil {
			fmt.Fprintf(os.Stderr, "%v: run make build\n", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}
