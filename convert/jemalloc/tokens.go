// SPDX-License-Identifier: Apache-2.0

package jemalloc

// A Python frame in a stack (docs/spool.md): 0x5079 << 48 | function id (26 bits) << 22 | line (22 bits).
const (
	tokenTag      = 0x5079
	tokenIDBits   = 26
	tokenLineBits = 22

	tokenFramesLeftOut = 0x5079ffffffffffff
	tokenWalkStopped   = 0x5079fffffffffffe
)

// Names of Python functions whose name is lost.
const (
	nameUnknownPython = "[unknown python function]"
	nameUnnamedPython = "[unnamed python function " // and its id, and "]"
)
