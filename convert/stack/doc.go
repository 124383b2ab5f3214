// SPDX-License-Identifier: Apache-2.0

// Package stack says what the frames of a heap profile mean, after a dump has been read: which are Python's, which
// belong to the allocator and to heapwire itself, how a frame reads on one line, and which lines hold the memory.
//
// In: a [profile.Profile] as convert/jemalloc makes it, named by convert/symbol if native names matter. Out: the same
// profile without the allocator's frames ([Clean]), tables ([Top], [Stacks]) and folded stacks ([Folded]).
//
// What can go wrong: a sample type that the profile does not have gives an empty table, and an error from Folded.
// Nothing here drops bytes: [Clean] keeps the outermost frame of a stack that would be left with none.
package stack
