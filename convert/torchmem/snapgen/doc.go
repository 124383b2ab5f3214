// SPDX-License-Identifier: Apache-2.0

// Package snapgen makes memory snapshots of known content, in every form that PyTorch and torch_npu write, of any size.
// Tests and benchmarks read them; nothing else should.
//
// A small model of the caching allocator runs training steps: parameters, activations, gradients, the state of an
// optimizer, one leaked tensor a step, frees that wait for another stream, an out-of-memory error at the end. [Generate]
// runs it, [Snapshot.Write] writes what a dump would hold, [Snapshot.Truth] works out the right answers by plain replay of
// the events, without any of the reader's tricks. The same options give the same bytes.
//
// What can go wrong: only writing.
package snapgen
