// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"regexp"
	"slices"
	"strings"

	"github.com/heapwire/heapwire/convert/stack"
)

var (
	// installed is the part of a path that tells where an environment lies: /opt/v1/lib/python3.11/site-packages/.
	installed = regexp.MustCompile(`^.*/(?:site|dist)-packages/`)
	// standard is the same of Python's own library: /usr/lib/python3.11/.
	standard = regexp.MustCompile(`^.*/lib/python[0-9.]+t?/`)
	// soVersion is the version of a shared library: .so.12.1.
	soVersion = regexp.MustCompile(`(\.so)[.0-9]*$`)
	// interpreterName is an interpreter or its library: python3.11, libpython3.11.so.
	interpreterName = regexp.MustCompile(`^(lib)?python[0-9.]+[a-z]?(\.so)?$`)
)

// canonical is a frame's file without what tells apart two installations of the same thing.
func canonical(f stack.Frame) string {
	if !f.Python {
		base := soVersion.ReplaceAllString(stack.BaseName(f.File), "$1")
		return interpreterName.ReplaceAllString(base, "python")
	}
	if file := installed.ReplaceAllString(f.File, ""); file != f.File {
		return file
	}
	return standard.ReplaceAllString(f.File, "")
}

// renames finds the files of the base that the head has under another path: the same file name, a function in common, and of
// all that have those the longest common end of the path, on both sides. Where two are equally good, neither is.
func renames(base, head map[functionKey]*function) map[string]string {
	from, to := filesOf(base), filesOf(head)
	best := func(file string, functions map[string]bool, among, others map[string]map[string]bool) string {
		found, length, tie := "", 0, false
		for other, names := range among {
			if _, both := others[other]; both || !shared(functions, names) {
				continue
			}
			switch n := commonEnd(file, other); {
			case n == 1 && strings.HasSuffix(file, "__init__.py"): // every package has one
			case n > length:
				found, length, tie = other, n, false
			case n == length && n > 0:
				tie = true
			}
		}
		if tie {
			return ""
		}
		return found
	}
	out := map[string]string{}
	for file, functions := range from {
		if _, both := to[file]; both {
			continue
		}
		other := best(file, functions, to, from)
		if other != "" && best(other, to[other], from, to) == file {
			out[file] = other
		}
	}
	return out
}

// filesOf gives the functions of each Python file.
func filesOf(functions map[functionKey]*function) map[string]map[string]bool {
	files := map[string]map[string]bool{}
	for key, f := range functions {
		if !f.python || key.file == "" {
			continue
		}
		if files[key.file] == nil {
			files[key.file] = map[string]bool{}
		}
		files[key.file][key.name] = true
	}
	return files
}

func shared(a, b map[string]bool) bool {
	for name := range a {
		if b[name] {
			return true
		}
	}
	return false
}

// commonEnd counts the elements in which two paths end alike.
func commonEnd(a, b string) int {
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	slices.Reverse(x)
	slices.Reverse(y)
	n := 0
	for n < len(x) && n < len(y) && x[n] == y[n] {
		n++
	}
	return n
}
