package examples

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

// cleanEnv is this process's environment without anything that steers heapwire, jemalloc, OpenTelemetry or Python's
// allocator, with more added.
func cleanEnv(more ...string) []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case strings.HasPrefix(name, "HEAPWIRE_"), strings.HasPrefix(name, "OTEL_"), strings.HasPrefix(name, "PYROSCOPE_"):
		case name == "LD_PRELOAD", name == "MALLOC_CONF", name == "PYTHONMALLOC":
		default:
			env = append(env, kv)
		}
	}
	return append(env, more...)
}
