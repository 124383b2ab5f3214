// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"regexp"
	"strings"

	"github.com/google/pprof/profile"
)

// Options says what [Clean] removes.
type Options struct {
	// KeepAllocator keeps the frames of the allocator and of heapwire's shim at the leaf.
	KeepAllocator bool
	// DropInterpreter removes the interpreter's own native frames between the leaf and the innermost Python frame. They
	// tell which operation of the interpreter allocated (list_resize, PyUnicode_New), so the default is to keep them.
	DropInterpreter bool
}

// Clean removes from the leaf of every stack what belongs to the allocator and to the shim, by mapping and by name, never
// by count (2 frames in jemalloc 5.2.1, 4 in 5.3.0, more with a hook), and adds up the stacks that are equal without them.
// A stack that has nothing else keeps its outermost frame.
func Clean(p *profile.Profile, opts Options) {
	classes := make([]class, len(p.Location))
	for i, l := range p.Location {
		l.ID = uint64(i + 1)
		classes[i] = classify(l)
	}
	changed := false
	for _, s := range p.Sample {
		n := 0
		if !opts.KeepAllocator {
			for n < len(s.Location)-1 && classes[s.Location[n].ID-1] == allocator {
				n++
			}
		}
		if opts.DropInterpreter {
			end := n
			for end < len(s.Location) && classes[s.Location[end].ID-1] == interpreter {
				end++
			}
			if end < len(s.Location) && classes[s.Location[end].ID-1] == python {
				n = end
			}
		}
		if n > 0 {
			s.Location = s.Location[n:]
			changed = true
		}
	}
	if changed {
		mergeEqual(p)
		Compact(p)
	}
}

// pythonBinary are the names of interpreters: python3, python3.12, python3.13t, python3.12d.
var pythonBinary = regexp.MustCompile(`^python[0-9.]*[a-z]?$`)

// class says whom a frame belongs to.
type class uint8

const (
	program class = iota
	allocator
	interpreter
	python
)

func classify(l *profile.Location) class {
	if IsPython(l) {
		return python
	}
	base := ""
	if l.Mapping != nil {
		base = BaseName(l.Mapping.File)
	}
	switch {
	case strings.HasPrefix(base, "libjemalloc"), strings.HasPrefix(base, "libheapwire"):
		return allocator
	case len(l.Line) > 0 && l.Line[0].Function != nil && allocatorName(l.Line[0].Function.Name):
		return allocator
	case strings.HasPrefix(base, "libpython"), pythonBinary.MatchString(base):
		return interpreter
	}
	return program
}

// allocatorName knows jemalloc's frames where it is linked into the program itself. Its global functions carry the prefix
// je_ (private_namespace.h); those listed are the public family and the static functions of src/jemalloc.c and src/prof.c
// that stand between it and the sampling.
func allocatorName(name string) bool {
	if strings.HasPrefix(name, "je_") || strings.HasPrefix(name, "_rjem_") || strings.HasPrefix(name, "hw_") ||
		strings.HasPrefix(name, "heapwire_") || strings.HasPrefix(name, "operator new") {
		return true
	}
	name, _, _ = strings.Cut(name, ".") // .part.0, .constprop.1, .cold
	return allocatorNames[name]
}

var allocatorNames = func() map[string]bool {
	m := map[string]bool{}
	for _, n := range strings.Fields(`
		malloc calloc realloc reallocarray posix_memalign aligned_alloc memalign valloc pvalloc
		mallocx rallocx xallocx
		malloc_default imalloc imalloc_body imalloc_no_sample imalloc_sample
		prof_alloc_prep prof_realloc_prep prof_backtrace prof_backtrace_impl prof_tctx_create prof_alloc_rollback
		ialloc iallocztm iralloc_prof_sample irallocx_prof irallocx_prof_sample do_rallocx do_realloc_nonnull_zero
		__libc_malloc __libc_calloc __libc_realloc __libc_memalign`) {
		m[n] = true
	}
	return m
}()

// mergeEqual adds up samples with the same locations and labels. The first of them stays.
func mergeEqual(p *profile.Profile) {
	type entry struct{ sample, next int32 }
	heads := make(map[uint64]int32, len(p.Sample))
	entries := make([]entry, 1, len(p.Sample)+1) // 0 ends a chain
	kept := p.Sample[:0]
next:
	for _, s := range p.Sample {
		h := uint64(14695981039346656037)
		for _, l := range s.Location {
			h = (h ^ l.ID) * 1099511628211
			h ^= h >> 29
		}
		for e := heads[h]; e != 0; e = entries[e].next {
			if same := kept[entries[e].sample]; equal(same, s) {
				for i, v := range s.Value {
					same.Value[i] += v
				}
				continue next
			}
		}
		entries = append(entries, entry{int32(len(kept)), heads[h]})
		heads[h] = int32(len(entries) - 1)
		kept = append(kept, s)
	}
	clear(p.Sample[len(kept):])
	p.Sample = kept
}

func equal(a, b *profile.Sample) bool {
	if len(a.Location) != len(b.Location) || len(a.NumLabel) != 0 || len(b.NumLabel) != 0 || len(a.Label) != len(b.Label) {
		return false
	}
	for i := range a.Location {
		if a.Location[i] != b.Location[i] {
			return false
		}
	}
	for k, v := range a.Label {
		w, ok := b.Label[k]
		if !ok || len(v) != len(w) {
			return false
		}
		for i := range v {
			if v[i] != w[i] {
				return false
			}
		}
	}
	return true
}
