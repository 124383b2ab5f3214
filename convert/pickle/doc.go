// SPDX-License-Identifier: Apache-2.0

// Package pickle reads pickles that hold nothing but data: dicts, lists, tuples, strings, numbers. It exists because a
// memory snapshot may be a gigabyte of them, and because a pickle is a program that may run anything: here nothing can be
// imported or called, as no opcode that does so is known.
//
// In: protocols 2 to 5 from any [io.Reader], read once from front to back, and a [Visitor]. Out: a call of the visitor
// for each container when it is complete, innermost first. No Go object is made per container: values are 16 bytes on a
// stack, strings are numbers, and what the visitor returns stands for the container from then on. So memory follows what is
// distinct, not what is there: two bytes a memo slot, the distinct strings, and the visitor's own.
//
// What can go wrong: any opcode outside the list is refused by name and offset ([ErrRefused]); a stream that contradicts
// itself or exceeds a limit gives an error with its offset; one that ends early gives [ErrTruncated] after everything
// before the cut has been visited. Distinct strings beyond the limits read as [LeftOut] and are counted.
//
// The opcodes and their meaning are those of CPython's Lib/pickletools.py; the differences between its pickler and
// torch::jit::Pickler (torch/csrc/jit/serialization/pickler.cpp) are that the latter memoises an object when it is
// complete, and puts all items of a list into one batch.
package pickle
