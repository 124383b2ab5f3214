// SPDX-License-Identifier: Apache-2.0

// Package torchmem reads the memory snapshots of PyTorch (CUDA, ROCm, XPU) and torch_npu (Ascend) and says which lines of
// the program hold the device's memory: at the dump, at the peak, and at each out-of-memory error.
//
// In: the pickle that torch.cuda.memory._dump_snapshot writes, or any of its relatives (a bare list of segments, the C++
// pickler's form, torch 2.0's history blocks, the traces before the segments), read once from front to back by
// convert/pickle, so that no snapshot can run code. Out: a [Snapshot] with a google/pprof profile for each device and view,
// the out-of-memory errors, gauges, and the figures of a page that a person reads.
//
// # Where the numbers come from
//
// Sizes are requested bytes, what the program asked for, except in the views reserved and inactive, whose sizes are the
// allocator's. A snapshot holds the state at the dump (segments, cut into blocks) and a window of events (allocations,
// frees, segments), which ends at the dump and rarely reaches back to the start. What was live before the window is known
// by its size only: baseline = requested bytes of the active blocks - bytes allocated in the window + bytes freed in it.
// Live bytes at any event are the baseline and the sum of the events up to it. Blocks that were there before the window
// and still are keep the stack the snapshot has for them; what has none is shown as [BeforeRecording]. Stacks without any
// Python frame, as in threads of autograd, are shown as [NoPythonFrames]. Nothing is dropped: the values of a view add up
// to the allocator's own figure.
//
// # Memory
//
// Events are replayed as they are read and not kept. What is kept is distinct (texts, frames, stacks), live (blocks), or
// two bytes a memo slot.
//
// # What can go wrong
//
// An input that is no pickle, or holds more than plain data, is refused with an error that names the byte. A pickle of
// something else gives [ErrNotSnapshot]. One that ends early gives what is whole, with Report.Truncated set. Everything
// else is counted in the [Report] and told by [Report.Warnings]: keys and actions that nobody knows, frees of unknown
// addresses, sizes that cannot be, blocks that overlap.
//
// The format is described by torch/csrc/cuda/Module.cpp (the Python writer), torch/csrc/cuda/memory_snapshot.cpp (the C++
// writer) and c10/cuda/CUDACachingAllocator.h (the actions).
package torchmem
