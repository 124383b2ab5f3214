// SPDX-License-Identifier: Apache-2.0

// Package compare says what changed between heap profiles: which stacks grow over a series of dumps of one process, which
// hold more in one deployment than in another, and what that means: a leak, growth that levels off, a spike, an allocator
// that keeps what was freed, memory that malloc has never seen.
//
// In: google/pprof profiles as convert/jemalloc and convert/torchmem make them, and the figures of HEAPWIRE_META. Out:
// [Growth] rows of a [Series], [Row]s of a [Comparison], and [Verdict]s with the numbers that led to them. Sizes are bytes,
// times seconds. No network, no clock, no files.
//
// # How sure it is
//
// A profile is an estimate from a sample. Live bytes B in objects of z bytes have the variance B·z/(exp(z/R)-1), R being the
// mean number of bytes between samples: about B·R for small objects, next to nothing for those of 3 R and more. Two dumps
// are taken as independent, which is the worst case (objects that live in both were sampled once), so that a change is told
// as one only if it stands out of the error of both. The figures of confidence speak of this error and of nothing else: a
// program that really grew for a while, and would have stopped, was measured right all the same.
//
// # What can go wrong
//
// A profile without inuse_space has no rows. A series of less than three dumps has growth and no verdict on it. Figures that
// a dump does not have leave out the verdicts that need them.
package compare
