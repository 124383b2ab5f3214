// SPDX-License-Identifier: Apache-2.0

// Package dumpgen writes heap_v2 dumps whose content is known, for tests and benchmarks of whatever reads them.
//
// In: a [Dump] filled by hand, or [Options] for [Generate], which makes one of any size from a seed. Out: the text that
// jemalloc and heapwire's shim would write, and the figures a reader must find ([Dump.Estimate]), worked out here by the
// plain formula and not by the reader under test.
//
// The package is for tests: a Dump that makes no sense is written as it is, so that odd dumps can be made too.
package dumpgen
