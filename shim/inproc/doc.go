// SPDX-License-Identifier: Apache-2.0

// Package main is libheapwire_inproc.so: the exporter inside the profiled process, for places where no second process is
// allowed. Whoever loads it calls heapwire_inproc_start and, at the end, heapwire_inproc_stop (home.h).
//
//	go build -buildmode=c-shared -ldflags '-X runtime.godebugDefault=asyncpreemptoff=1' -o libheapwire_inproc.so ./shim/inproc
//
// A Go library brings a runtime, and a runtime wants signals and threads. What is done about that:
//
//   - Signals. At load the runtime takes SIGSEGV, SIGBUS, SIGFPE, SIGPIPE and SIGURG, and adds SA_ONSTACK to the handlers of
//     the program (runtime/signal_unix.go, initsig). All of it is undone before start returns. The price: a nil pointer
//     in Go is a SIGSEGV of the program's instead of a panic.
//   - Preemption by SIGURG is turned off at link time, by the flag above; nobody sends the program signals.
//   - Threads. They inherit the mask of the thread that loads the library: it must have all signals blocked, as the shim's
//     clock thread has. The runtime unblocks SIGPROF, SIGILL, SIGTRAP, SIGSTKFLT and the faults in its threads; handlers of
//     these that were there at load keep SA_ONSTACK, since a handler does not fit on a goroutine's stack.
//   - Fork. Nothing of Go runs in a child: every entry looks in C first whether the process is the one that started. The
//     child closes the descriptors that hold claims, or it would keep them after its parent's end.
package main
