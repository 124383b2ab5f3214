// SPDX-License-Identifier: Apache-2.0

package symbol

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/google/pprof/profile"
	"github.com/ianlancetaylor/demangle"

	"github.com/heapwire/heapwire/convert/stack"
)

// Resolver names addresses and remembers the names. Its zero value reads files at the paths that profiles have. It may be
// used from several goroutines.
type Resolver struct {
	// Root is put before every path, so that files of a container are found: "/proc/<pid>/root", or an unpacked image.
	// Links inside it that lead out of it are not followed.
	Root string

	mu    sync.Mutex
	files map[fileKey]*file
}

type fileKey struct{ path, buildID string }

// file is what is remembered of one ELF file.
type file struct {
	names  map[uint64]string // symbol by offset in the file; "" where there is none
	vaddrs map[uint64]uint64 // address as the file counts it, by offset in the file
	reason string            // why the file cannot be used; final
}

// Report says what became of the native locations of one profile.
type Report struct {
	Named   int // locations with a symbol
	Unnamed int // locations that got an address only
	// Unverified counts files that were used without a build id to compare.
	Unverified int
	// Files that could not be used, each once.
	Files []FileReport
}

// FileReport is a file whose frames got addresses only.
type FileReport struct {
	Path   string
	Reason string
	Frames int
}

// Warnings tells a person what was not named and why, a line each.
func (r Report) Warnings() []string {
	var out []string
	for _, f := range r.Files {
		out = append(out, fmt.Sprintf("%s: %s: its %d frames have addresses only", f.Path, f.Reason, f.Frames))
	}
	return out
}

// Symbolize gives a function to every native location that has none.
func (r *Resolver) Symbolize(p *profile.Profile) Report {
	r.mu.Lock()
	defer r.mu.Unlock()

	groups := map[fileKey][]*profile.Location{}
	functions := newFunctions(p)
	var report Report
	var keys []fileKey
	for _, l := range p.Location {
		if len(l.Line) > 0 || stack.IsPython(l) {
			continue
		}
		if l.Mapping == nil || !strings.HasPrefix(l.Mapping.File, "/") || strings.HasPrefix(l.Mapping.File, "//") {
			functions.set(l, "", stack.Address(l)) // JIT code, [vdso], memory without a file
			report.Unnamed++
			continue
		}
		k := fileKey{l.Mapping.File, l.Mapping.BuildID}
		if _, ok := groups[k]; !ok {
			keys = append(keys, k)
		}
		groups[k] = append(groups[k], l)
	}
	slices.SortFunc(keys, func(a, b fileKey) int {
		return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.buildID, b.buildID))
	})
	for _, k := range keys {
		locations := groups[k]
		f := r.lookUp(k, locations)
		if f.reason != "" {
			report.Files = append(report.Files, FileReport{k.path, f.reason, len(locations)})
		} else if k.buildID == "" {
			report.Unverified++
		}
		for _, l := range locations {
			offset := l.Address - l.Mapping.Start + l.Mapping.Offset
			if name := f.names[offset]; name != "" {
				functions.set(l, name, readable(name))
				l.Mapping.HasFunctions = true
				report.Named++
				continue
			}
			address, ok := f.vaddrs[offset]
			if !ok {
				address = offset
			}
			functions.set(l, "", fmt.Sprintf("%s!%#x", stack.BaseName(k.path), address))
			report.Unnamed++
		}
	}
	return report
}

// lookUp makes sure that all offsets of the locations are in the file's cache.
func (r *Resolver) lookUp(k fileKey, locations []*profile.Location) *file {
	f := r.files[k]
	if f == nil {
		f = &file{names: map[uint64]string{}, vaddrs: map[uint64]uint64{}}
		if r.files == nil {
			r.files = map[fileKey]*file{}
		}
		r.files[k] = f
	}
	if f.reason != "" {
		return f
	}
	var wanted []uint64
	for _, l := range locations {
		offset := l.Address - l.Mapping.Start + l.Mapping.Offset
		if _, ok := f.names[offset]; !ok {
			f.names[offset] = ""
			wanted = append(wanted, offset)
		}
	}
	if len(wanted) == 0 {
		return f
	}
	name, deleted := strings.CutSuffix(k.path, " (deleted)")
	if deleted && k.buildID == "" {
		f.reason = "the file was deleted or replaced, and the dump has no build id to know it by"
		return f
	}
	if err := f.read(r.Root, path.Clean(name), k.buildID, wanted); err != nil {
		f.reason = err.Error()
	}
	return f
}

// maxDemangle bounds what is given to the demangler; its output is cut at 2^14 bytes.
const maxDemangle = 16 << 10

func readable(symbol string) string {
	if len(symbol) > maxDemangle {
		return symbol
	}
	return demangle.Filter(symbol, demangle.MaxLength(14))
}

// functions adds functions to a profile, each once.
type functions struct {
	p    *profile.Profile
	last uint64
	byID map[[2]string]*profile.Function
}

func newFunctions(p *profile.Profile) *functions {
	f := &functions{p: p, byID: map[[2]string]*profile.Function{}}
	for _, fn := range p.Function {
		f.last = max(f.last, fn.ID)
	}
	return f
}

func (f *functions) set(l *profile.Location, system, name string) {
	if system == "" {
		system = name
	}
	key := [2]string{system, name}
	fn := f.byID[key]
	if fn == nil {
		f.last++
		fn = &profile.Function{ID: f.last, Name: name, SystemName: system}
		f.byID[key] = fn
		f.p.Function = append(f.p.Function, fn)
	}
	l.Line = []profile.Line{{Function: fn}}
}
