// SPDX-License-Identifier: Apache-2.0

// Package examples holds small real programs, one lesson each, and the tests that run every one of them under every
// CPython on the machine and compare its profile with what the program itself counted.
//
// leak_basic, leak_native and workers are written to be read; the programs under cases reach the corners: generators,
// threads, deep recursion, fork, child processes, interpreters whose frames are not understood.
package examples
