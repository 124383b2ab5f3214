// SPDX-License-Identifier: Apache-2.0

package run

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Preload puts library first in LD_PRELOAD and keeps what was there.
func Preload(env []string, library string) ([]string, error) {
	// ld.so(8): the entries are separated by blanks or colons, and nothing escapes either.
	if strings.ContainsAny(library, ": \t\n") {
		return nil, fmt.Errorf("preloading %s: LD_PRELOAD cannot hold a path with a blank or a colon", library)
	}
	if !filepath.IsAbs(library) {
		return nil, fmt.Errorf("preloading %s: want an absolute path", library)
	}
	before, _ := Lookup(env, "LD_PRELOAD")
	value := library
	for _, entry := range strings.FieldsFunc(before, func(r rune) bool { return r == ':' || r == ' ' }) {
		if entry != library {
			value += ":" + entry
		}
	}
	return Set(env, "LD_PRELOAD", value), nil
}

// PythonPath puts folder first in PYTHONPATH and keeps what was there.
func PythonPath(env []string, folder string) []string {
	value := folder
	// An empty entry would be the working directory.
	if before, _ := Lookup(env, "PYTHONPATH"); before != "" {
		value += ":" + before
	}
	return Set(env, "PYTHONPATH", value)
}

// Set returns env with one variable set and every other as it was, in its order.
func Set(env []string, key, value string) []string {
	out := Unset(env, key)
	return append(out, key+"="+value)
}

// Unset returns env without a variable.
func Unset(env []string, key string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool { return strings.HasPrefix(entry, key+"=") })
}

// Lookup gives the first value of a variable, which is the one that getenv(3) gives.
func Lookup(env []string, key string) (string, bool) {
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, key+"="); ok {
			return value, true
		}
	}
	return "", false
}

// FindLibrary gives the absolute path of the shim: the named file if any, else libheapwire.so beside the program or in
// ../lib of it.
func FindLibrary(named string) (string, error) {
	if named != "" {
		path, err := filepath.Abs(named)
		if err != nil {
			return "", fmt.Errorf("finding libheapwire.so: %w", err)
		}
		return path, regular(path)
	}
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding libheapwire.so: %w", err)
	}
	if real, err := filepath.EvalSymlinks(program); err == nil {
		program = real
	}
	dir := filepath.Dir(program)
	candidates := []string{filepath.Join(dir, "libheapwire.so"), filepath.Join(dir, "..", "lib", "libheapwire.so")}
	for _, path := range candidates {
		if regular(path) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("finding libheapwire.so: not at %s; name it with --lib or HEAPWIRE_LIB", strings.Join(candidates, " nor at "))
}

// FindPython gives the folder of the Python package that goes with a library: heapwire-python, beside it.
func FindPython(library string) (string, error) {
	folder := filepath.Join(filepath.Dir(library), "heapwire-python")
	if _, err := os.Stat(filepath.Join(folder, "sitecustomize.py")); err != nil {
		return "", fmt.Errorf("finding the Python package: %w", err)
	}
	return folder, nil
}

func regular(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		return fmt.Errorf("finding libheapwire.so: %w", err)
	}
	return nil
}
