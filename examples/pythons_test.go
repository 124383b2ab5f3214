package examples

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
	"testing"
	"time"
)

// A python is one interpreter of the machine.
type python struct {
	Path    string `json:"path"`
	Major   int    `json:"major"`
	Minor   int    `json:"minor"`
	Micro   int    `json:"micro"`
	Kind    string `json:"kind"` // CPython, PyPy, …
	Free    bool   `json:"free"` // built without the lock
	Headers bool   `json:"headers"`
}

func (p python) String() string { return fmt.Sprintf("%d.%d.%d", p.Major, p.Minor, p.Micro) }

// supported tells whether Python frames are promised: CPython 3.8 to 3.15 with the lock.
func (p python) supported() bool {
	return p.Kind == "CPython" && !p.Free && p.Major == 3 && p.Minor >= 8 && p.Minor <= 15
}

// qualified tells whether code objects know their qualified names.
func (p python) qualified() bool { return p.Minor >= 11 }

const askPython = `
import json, os, platform, sys, sysconfig
path = sysconfig.get_path("include") or ""
print(json.dumps({
    "path": os.path.realpath(sys.executable), "kind": platform.python_implementation(),
    "major": sys.version_info[0], "minor": sys.version_info[1], "micro": sys.version_info[2],
    "free": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "headers": os.path.exists(os.path.join(path, "Python.h")),
}))`

var pythonName = regexp.MustCompile(`^python([23](\.[0-9]+)?)?$`)

// allPythons finds the interpreters in PATH, /usr/bin, pyenv's folder and $HEAPWIRE_PYTHONS (files or folders, separated
// by colons), each once, oldest first.
var allPythons = sync.OnceValues(func() ([]python, error) {
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
			if pythonName.MatchString(e.Name()) {
				candidates = append(candidates, filepath.Join(folder, e.Name()))
			}
		}
	}

	asked, known := map[string]bool{}, map[string]bool{}
	var found []python
	for _, candidate := range candidates {
		real, err := filepath.EvalSymlinks(candidate)
		if err != nil || asked[real] {
			continue
		}
		asked[real] = true
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		cmd := exec.CommandContext(ctx, candidate, "-c", askPython)
		cmd.Env = cleanEnv()
		out, err := cmd.Output()
		cancel()
		var p python
		if err != nil || json.Unmarshal(out, &p) != nil || known[p.Path] {
			continue // a launcher of a version that is not installed, for one
		}
		known[p.Path] = true
		found = append(found, p)
	}
	slices.SortFunc(found, func(a, b python) int {
		return slices.Compare([]int{a.Major, a.Minor, a.Micro}, []int{b.Major, b.Minor, b.Micro})
	})
	return found, nil
})

// pythons returns the interpreters for which keep holds; none at all is a failure.
func pythons(t *testing.T, keep func(python) bool) []python {
	t.Helper()
	all, err := allPythons()
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
	found := pythons(t, python.supported)
	if len(found) == 0 {
		t.Skip("no CPython between 3.8 and 3.15 found")
	}
	return found[len(found)-1]
}

func TestPythonsOfThisMachine(t *testing.T) {
	var supported, others []string
	for _, p := range pythons(t, func(python) bool { return true }) {
		name := strings.TrimSpace(fmt.Sprintf("%s (%s)", p, p.Path))
		if p.supported() {
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
