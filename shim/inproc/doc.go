// SPDX-License-Identifier: Apache-2.0

// Package main is libheapwire_inproc.so: the exporter inside the profiled process, for places where no second process is
// allowed. The shim maps it when the process starts, calls heapwire_inproc_start later and heapwire_inproc_stop at the end
// (home.h; shim/src/inproc.c).
//
// A Go library brings a runtime, and a runtime wants signals and threads. What is done about that:
//
//   - Loading it starts nothing: what the loader would call is renamed when linking (link), and called by
//     heapwire_inproc_start. So it can be mapped before main, while nobody can wait for the loader's lock.
//   - Signals. The runtime's table of signals is emptied before it starts: no handler is installed or changed, and nothing is
//     unblocked in its threads, which have the mask of the thread that called heapwire_inproc_start. The price: a nil
//     pointer in Go is a SIGSEGV of the program's instead of a panic.
//   - Preemption by SIGURG is turned off at link time (runtime.godebugDefault): nobody sends the program signals. So is
//     libc's resolver, which may load libraries.
//   - Descriptors. It has the table of the thread that called heapwire_inproc_start: the clock's, which is not the program's.
//     Last words of a runtime that gives up go to a file in the spool.
//   - Environment. A copy of what it was at load: setproctitle writes over the original.
//   - Fork. Nothing of Go runs in a child: every entry looks in C first whether the process is the one that started. Where
//     the table is the program's all the same, the child closes the descriptors that hold claims, or it would keep them
//     after its parent's end.
package main
