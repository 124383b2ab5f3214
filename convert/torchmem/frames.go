// SPDX-License-Identifier: Apache-2.0

package torchmem

import (
	"strings"

	"github.com/heapwire/heapwire/convert/stack"
)

// Frames that say nothing about the program, from torch/utils/viz/MemoryViz.js, frameFilter. The viewer leaves out any
// function whose name contains one of the first list; here that holds for native frames only, so that a Python function
// called train_start stays.
var (
	plumbingNames = []string{
		"unwind::unwind", "CapturedTraceback::gather", "gather_with_cpp", "_start", "__libc_start_main", "PyEval_",
		"PyObject_", "PyFunction_",
	}
	plumbingFiles = []string{
		"core/boxing", "/Register", "/Redispatch", "pythonrun.c", "Modules/main.c", "Objects/call.c",
		"Objects/methodobject.c", "pycore_ceval.h", "ceval.c", "cpython/abstract.h",
	}
)

func isPlumbing(name, file string) bool {
	if isPython(file) {
		return false
	}
	for _, p := range plumbingNames {
		if strings.Contains(name, p) {
			return true
		}
	}
	for _, p := range plumbingFiles {
		if strings.Contains(file, p) {
			return true
		}
	}
	return false
}

// isPython tells a frame of Python code from one of C++, which has no mark of its own: the file of a C++ frame is "??", ":0",
// empty, a source file or an object, and that of a Python frame a module or a name in brackets ("<frozen runpy>").
func isPython(file string) bool {
	return strings.HasSuffix(file, ".py") || strings.HasSuffix(file, ".pyx") || strings.HasSuffix(file, ".ipynb") || strings.HasPrefix(file, "<")
}

// nativeFile is the file of a C++ frame, "" where the symboliser found none.
func nativeFile(file string) string {
	if file == "??" || strings.HasPrefix(file, ":") {
		return ""
	}
	return file
}

// visible leaves out what the viewer leaves out, unless nothing else is there, and makes three and more equal frames in a
// row one.
func (s *stackTable) visible(frames []uint32, all bool, plumbing func(uint32) bool) []uint32 {
	if all {
		return frames
	}
	var kept []uint32
	for i, f := range frames {
		if plumbing(f) {
			continue
		}
		run := i >= 2 && frames[i-1] == f && frames[i-2] == f
		if run && len(kept) >= 2 && kept[len(kept)-2] == f {
			kept = kept[:len(kept)-1]
			continue
		}
		if run && len(kept) >= 1 && kept[len(kept)-1] == f {
			continue
		}
		kept = append(kept, f)
	}
	if len(kept) == 0 {
		return frames
	}
	return kept
}

// frames are those of a stack, for records that people read: leaf first, without the plumbing.
func (r *reader) frames(id uint32) []Frame {
	var out []Frame
	frames := r.stacks.visible(r.stacks.get(id), r.opts.AllFrames, func(f uint32) bool {
		return isPlumbing(r.m.Text(int64(r.stacks.frames[f].name)), r.m.Text(int64(r.stacks.frames[f].file)))
	})
	for _, f := range frames {
		fr := r.stacks.frames[f]
		name, file := r.m.Text(int64(fr.name)), r.m.Text(int64(fr.file))
		python := isPython(file)
		if !python {
			file = nativeFile(file)
		}
		out = append(out, Frame{Name: name, File: file, Line: int64(fr.line), Python: python})
	}
	return out
}

// rowFrames are those of a view's line, a note among them.
func (r *reader) rowFrames(w row) []Frame {
	frames := r.frames(w.stack)
	if w.note != noNote {
		frames = append([]Frame{{Name: noteTexts[w.note]}}, frames...)
	}
	return frames
}

// String is the frame on one line, as convert/stack writes it: "forward model.py:12".
func (f Frame) String() string {
	return stack.Frame{Function: f.Name, File: strings.ReplaceAll(f.File, `\`, "/"), Line: f.Line, Python: f.Python}.String()
}
