// SPDX-License-Identifier: Apache-2.0

// Package pythons finds the Python interpreters of a machine, for tests that run under each of them.
package pythons

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Python is one interpreter.
type Python struct {
	Path    string `json:"path"`
	Major   int    `json:"major"`
	Minor   int    `json:"minor"`
	Micro   int    `json:"micro"`
	Kind    string `json:"kind"`    // CPython, PyPy, …
	Free    bool   `json:"free"`    // built without the lock
	Headers bool   `json:"headers"` // Python.h is there: extensions can be built
	Include string `json:"include"` // folder of Python.h
}

func (p Python) String() string { return fmt.Sprintf("%d.%d.%d", p.Major, p.Minor, p.Micro) }

// Supported tells whether Python frames are promised: CPython 3.8 to 3.15 with the lock.
func (p Python) Supported() bool {
	return p.Kind == "CPython" && !p.Free && p.Major == 3 && p.Minor >= 8 && p.Minor <= 15
}

// Qualified tells whether code objects know their qualified names.
func (p Python) Qualified() bool { return p.Minor >= 11 }

const ask = `
import json, os, platform, sys, sysconfig
path = sysconfig.get_path("include") or ""
print(json.dumps({
    "path": os.path.realpath(sys.executable), "kind": platform.python_implementation(),
    "major": sys.version_info[0], "minor": sys.version_info[1], "micro": sys.version_info[2],
    "free": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "headers": os.path.exists(os.path.join(path, "Python.h")), "include": path,
}))`

var name = regexp.MustCompile(`^python([23](\.[0-9]+)?)?$`)

// Find returns the interpreters in PATH, /usr/bin, pyenv's folder and $HEAPWIRE_PYTHONS (files or folders, separated by
// colons), each once, oldest first.
var Find = sync.OnceValues(func() ([]Python, error) {
	folders := append(filepath.SplitList(os.Getenv("PATH")), "/usr/bin")
	pyenv := os.Getenv("PYENV_ROOT")
	if pyenv == "" {
		if home, err := os.UserHomeDir(); err == nil {
			pyenv = filepath.Join(home, ".pyenv")
		}
	}
	versions, err := filepath.Glob(filepath.Join(pyenv, "versions", "*", "bin"))
	if err != nil {
		return nil, err
	}
	folders = append(folders, versions...)

	var candidates []string
	for _, named := range filepath.SplitList(os.Getenv("HEAPWIRE_PYTHONS")) {
		if info, err := os.Stat(named); err != nil {
			return nil, fmt.Errorf("HEAPWIRE_PYTHONS: %w", err)
		} else if info.IsDir() {
			folders = append(folders, named, filepath.Join(named, "bin"))
		} else {
			candidates = append(candidates, named)
		}
	}
	for _, folder := range folders {
		entries, err := os.ReadDir(folder)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if name.MatchString(e.Name()) {
				candidates = append(candidates, filepath.Join(folder, e.Name()))
			}
		}
	}

	asked, known := map[string]bool{}, map[string]bool{}
	var found []Python
	for _, candidate := range candidates {
		real, err := filepath.EvalSymlinks(candidate)
		if err != nil || asked[real] {
			continue
		}
		asked[real] = true
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		cmd := exec.CommandContext(ctx, candidate, "-c", ask)
		cmd.Env = CleanEnv()
		out, err := cmd.Output()
		cancel()
		var p Python
		if err != nil || json.Unmarshal(out, &p) != nil || known[p.Path] {
			continue // a launcher of a version that is not installed, for one
		}
		known[p.Path] = true
		found = append(found, p)
	}
	slices.SortFunc(found, func(a, b Python) int {
		return slices.Compare([]int{a.Major, a.Minor, a.Micro}, []int{b.Major, b.Minor, b.Micro})
	})
	return found, nil
})

// CleanEnv is this process's environment without anything that steers heapwire, jemalloc, OpenTelemetry or Python's
// allocator, with more added.
func CleanEnv(more ...string) []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case strings.HasPrefix(name, "HEAPWIRE"), strings.HasPrefix(name, "OTEL_"), strings.HasPrefix(name, "PYROSCOPE_"):
		case name == "LD_PRELOAD", name == "MALLOC_CONF", name == "PYTHONMALLOC":
		default:
			env = append(env, kv)
		}
	}
	return append(env, more...)
}
