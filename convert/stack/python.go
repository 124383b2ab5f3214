// SPDX-License-Identifier: Apache-2.0

package stack

import "github.com/google/pprof/profile"

// PythonMapping is the file of the one mapping that all Python frames sit on. Its addresses mean nothing: locations there
// have address 0 and are told apart by function and line, so that the same line of two processes is one location when
// profiles are merged (profile.Merge compares address, mapping and lines).
const PythonMapping = "[python]"

// IsPython tells whether a location is a Python frame, or one of the notes among them such as "[frames left out]".
func IsPython(l *profile.Location) bool {
	return l != nil && l.Mapping != nil && l.Mapping.File == PythonMapping
}

// Names of the locations that stand for frames that are not there.
const (
	FramesLeftOut = "[frames left out]"     // the stack was too deep for the allocator: some of its middle is missing
	WalkStopped   = "[python walk stopped]" // a pointer made no sense: the outer Python frames are missing
	NoStack       = "[no stack]"            // the allocator could not unwind at all
)

// isNote tells whether a location stands for frames that are not there.
func isNote(l *profile.Location) bool {
	if len(l.Line) == 0 || l.Line[0].Function == nil {
		return false
	}
	name := l.Line[0].Function.Name
	return name == FramesLeftOut || name == WalkStopped
}

// innermost returns the frame that a sample is charged to: the innermost Python frame, which is the line that a Python
// programmer can change, else the leaf. It is nil for a sample without locations.
func innermost(s *profile.Sample) *profile.Location {
	var note *profile.Location
	for _, l := range s.Location {
		if !IsPython(l) {
			continue
		}
		if !isNote(l) {
			return l
		}
		if note == nil {
			note = l
		}
	}
	if note != nil {
		return note
	}
	if len(s.Location) > 0 {
		return s.Location[0]
	}
	return nil
}
