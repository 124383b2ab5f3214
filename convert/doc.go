// SPDX-License-Identifier: Apache-2.0

// Package convert turns what the profiled process left behind into google/pprof profiles: bytes in, profiles out, no
// network, no clock, no global state.
//
// [HeapDump] is the whole way for one heap dump: read (convert/jemalloc), name the native frames (convert/symbol), take
// the allocator's own frames off the leaf (convert/stack). Who needs one step only uses that package.
package convert
