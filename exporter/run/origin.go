// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package run

import (
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The tables below are the note's (origin_*.s): it runs as the signal handler, writes down where the signal is from, and
// goes on to the handler of the Go runtime, which it has displaced.
var (
	origins  [65]uint64  // by signal: sender's pid in the upper half, si_code in the lower; written by the note
	handlers [65]uintptr // by signal: the displaced handler; read by the note
)

// noteAddress is the address of the note, filled in by the linker.
var noteAddress uintptr // defined in assembly

// sigaction is struct sigaction as rt_sigaction(2) takes it on these architectures.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// watchOrigin puts the note before the handler of a signal that signal.Notify has taken.
func watchOrigin(s syscall.Signal) {
	var action sigaction
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), 0, uintptr(unsafe.Pointer(&action)), 8, 0, 0)
	const saSiginfo = 4 // asm-generic/signal-defs.h
	if errno != 0 || action.handler <= 1 || action.flags&saSiginfo == 0 || action.handler == noteAddress {
		return
	}
	atomic.StoreUintptr(&handlers[s], action.handler)
	action.handler = noteAddress
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
}

// originOf tells where the latest signal of a kind was from.
func originOf(s syscall.Signal) origin {
	if atomic.LoadUintptr(&handlers[s]) == 0 {
		return origin{}
	}
	v := atomic.LoadUint64(&origins[s])
	return origin{known: true, code: int32(uint32(v)), pid: int32(uint32(v >> 32))}
}
