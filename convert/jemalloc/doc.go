// SPDX-License-Identifier: Apache-2.0

// Package jemalloc reads jemalloc's heap_v2 dumps, with or without the sections that heapwire's shim appends, and turns
// them into google/pprof profiles.
//
// In: the text of one dump, from any [io.Reader], read once from front to back. Out: a [Dump] with the profile (live
// bytes and objects, and allocated ones where the dump has them), what the shim noted beside it, and a [Report] of
// everything that was odd on the way.
//
// The numbers of a dump are not totals: jemalloc samples, and every version prints figures that have to be scaled once
// per stack line before anything is added up (scale.go has the formula and its source). Values of the profile are after
// scaling, in usable bytes (what the allocator reserved for a request), rounded once per distinct stack.
//
// Every address of a stack is a return address. A native [profile.Location] holds the address minus one, which lies
// within the call, so that any consumer can look it up as it is. Python frames are no addresses at all: their locations
// sit on the mapping [stack.PythonMapping] with address 0, so that equal lines of two processes merge.
//
// What can go wrong: an input of another format is refused with [ErrNotHeapV2] and named; an input cut before its first
// whole stack gives [ErrTruncated]. Everything else (a cut, lines of garbage, lines that nobody knows, frames without a
// mapping) costs only the part concerned, is counted in the Report and told by [Report.Warnings].
package jemalloc
