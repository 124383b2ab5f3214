// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/google/pprof/profile"
)

// Frame is what a person reads of a location.
type Frame struct {
	Function string // qualified name, symbol, or "libfoo.so!0x1234" for a frame without one
	File     string // source file of a Python frame; the object's path of a native one; may be empty
	Line     int64  // 0 if not known
	Start    int64  // line of the function's header, 0 if not known: a line keeps its distance from it where code moves
	Python   bool
}

// frame reads the innermost line of a location.
func frame(l *profile.Location) Frame {
	f := Frame{Python: IsPython(l)}
	if l.Mapping != nil && !f.Python {
		f.File = l.Mapping.File
	}
	if len(l.Line) == 0 || l.Line[0].Function == nil {
		f.Function = Address(l)
		return f
	}
	line := l.Line[0]
	f.Function, f.Line, f.Start = line.Function.Name, line.Line, line.Function.StartLine
	if line.Function.Filename != "" || f.Python {
		f.File = line.Function.Filename
	}
	return f
}

// String is the frame on one line: "handle app.py:12", "list_resize libpython3.12.so.1.0", "libfoo.so!0x1234".
func (f Frame) String() string {
	base := BaseName(f.File)
	switch {
	case base == "" || strings.HasPrefix(f.Function, base+"!"):
		return f.Function
	case f.Line > 0:
		return f.Function + " " + base + ":" + strconv.FormatInt(f.Line, 10)
	}
	return f.Function + " " + base
}

// Short is a location on one line, file names without their folders.
func Short(l *profile.Location) string { return frame(l).String() }

// Key names a location the same way in every process of a program: function, full file and line, without addresses as
// long as there is a name.
func Key(l *profile.Location) string {
	f := frame(l)
	return f.Function + "\x00" + f.File + "\x00" + strconv.FormatInt(f.Line, 10)
}

// Address names a location that has no function: "libfoo.so!0x1234" with the offset in the file, or the bare address.
func Address(l *profile.Location) string {
	if l.Mapping == nil {
		return fmt.Sprintf("%#x", l.Address)
	}
	base := BaseName(l.Mapping.File)
	if base == "" {
		return fmt.Sprintf("[anonymous]!%#x", l.Address)
	}
	return fmt.Sprintf("%s!%#x", base, l.Address-l.Mapping.Start+l.Mapping.Offset)
}

// BaseName is the last element of a path, without the " (deleted)" that the kernel appends to files that are gone.
func BaseName(file string) string {
	file = strings.TrimSuffix(file, " (deleted)")
	if file == "" {
		return ""
	}
	return path.Base(file)
}

// Size is a number of bytes as a person reads it: "512 B", "64.9 MiB".
func Size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	v, i := float64(n), 0
	for (v >= 1024 || v <= -1024) && i < len(units)-1 {
		v /= 1024
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
