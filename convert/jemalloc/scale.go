// SPDX-License-Identifier: Apache-2.0

package jemalloc

import "math"

// scale turns the objects and bytes of one stack line as printed into the estimate of what the program holds:
// f = 1/(1-exp(-(bytes/objects)/sampleBytes)), objects*f and bytes*f.
//
// An allocation of z bytes is sampled with probability 1-exp(-z/sampleBytes). Raw dumps (jemalloc up to 5.2.1, or
// prof_unbias:false) print sums of what was sampled, to be divided by it. Unbiased dumps (5.3.0 and later) print the
// numbers that make this same formula yield jemalloc's own estimate (prof_do_unbias in src/prof_data.c and
// doc_internal/PROFILING_INTERNALS.md), so one rule fits every version, and it must be applied exactly once, per line,
// before any sum.
//
// Expm1 keeps the digits that 1-exp(x) loses for small x: 16 byte objects at 512 KiB would keep eleven of sixteen.
func scale(objects, bytes uint64, sampleBytes float64) (float64, float64) {
	if objects == 0 {
		return 0, 0
	}
	n, s := float64(objects), float64(bytes)
	if sampleBytes <= 1 {
		return n, s
	}
	f := -1 / math.Expm1(-(s / n / sampleBytes))
	return n * f, s * f
}
